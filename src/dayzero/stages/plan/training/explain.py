"""A plan for training in words: why a layout ranks where it does, the table for the terminal, the JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.table import Table

from dayzero.data.training import Generation
from dayzero.schema import Estimate, ModelSpec, Target, Trained
from dayzero.stages.plan.choice.reasons import by_cause
from dayzero.stages.plan.words.link_notes import link_notes
from dayzero.units import format_bytes, format_interval

ALIKE = 0.005
"""Share below which two steps take the same time."""


def explained(found: Sequence[Trained], ranks: Sequence[int], legal: int, fitting: int) -> tuple[Trained, ...]:
    """The entries, each with its explanation and what it loses against the first. `legal`, `fitting`: layouts that
    there are."""
    return tuple(msgspec.structs.replace(one, explanation=_why(one, found[0], rank, fitting, legal),
                                         comparison=_against(one, found[0]))
                 for one, rank in zip(found, ranks, strict=True))


def _why(one: Trained, best: Trained, place: int, fitting: int, legal: int) -> str:
    need, usable = format_bytes(one.need_bytes), format_bytes(one.usable_bytes)
    if not one.fits:
        cause = max(one.bytes_per_device, key=lambda name: one.bytes_per_device[name])
        host = "" if one.host_bytes == 0 else f", beside {format_bytes(one.host_bytes)} in the host's memory"
        return (f"Does not fit in any way: the fullest device needs {need} of {usable}, most of it {cause}{host}. "
                f"{fitting} of {legal} legal layouts fit.")
    rank = (f"First of {fitting} that fit" if place == 1 else
            f"Number {place} of {fitting} that fit, {best.step_s.value / one.step_s.value:.0%} of the first")
    return (f"{rank}: a step takes {_step(one)}, of it {', '.join(one.limits)}; {one.mfu:.0%} of the "
            f"stated rate; {way(one)}. The fullest device needs {need} of {usable}.")


def _against(one: Trained, first: Trained) -> str:
    """`loses 12%: pipeline bubble 0.2 -> 0.5 s`; empty for the first and where it does not fit."""
    if one.layout == first.layout or not one.fits:
        return ""
    lost = 1 - first.step_s.value / one.step_s.value
    if lost < ALIKE:
        return "as fast"
    return f"loses {lost:.0%}: {by_cause(first.step_seconds, one.step_seconds, slower=True)} a step"


def _step(one: Trained) -> str:
    return format_interval(one.step_s.value, one.step_s.low, one.step_s.high, "s")


def way(one: Trained) -> str:
    """`micro-batches of 2, recompute none, zero 1, interleaved 2`."""
    chunks = f", interleaved {one.virtual}" if one.virtual > 1 else ""
    filled = ", zero-bubble" if one.schedule == "zero-bubble" else ""
    away = "" if one.offload == "none" else f", {one.offload} in the host's memory"
    along = "" if one.sequence_parallel else ", no sequence parallelism"
    return (f"micro-batches of {one.micro_batch}, recompute {one.recompute}, zero {one.zero}{chunks}{filled}{away}"
            f"{along}")


def training_table(found: Sequence[Trained]) -> Table:
    """The layouts, best first."""
    table = Table(title="Layouts, best first", title_justify="left", expand=False)
    table.add_column("layout", overflow="fold")
    for heading in ("fits", "memory", "step", "MFU", "tokens/s", "days", "bubble"):
        table.add_column(heading, no_wrap=True)
    for heading in ("way", "most of the time"):
        table.add_column(heading, overflow="fold")
    for one in found:
        table.add_row(one.layout.text, "yes" if one.fits else "no", format_bytes(one.need_bytes),
                      _step(one).replace(" (", "\n("), f"{one.mfu:.0%}", f"{one.tokens_per_s.value:,.0f}",
                      f"{one.days.value:,.1f}", f"{one.bubble:.0%}", way(one), one.limits[0] if one.limits else "",
                      style="" if one.fits else "dim")
    return table


def training_contract(one: Trained, notes: Sequence[str]) -> dict[str, Any]:
    """The entry of `dayzero plan --json`; what only serving has is null."""
    def ends(estimate: Estimate, divisor: int = 1) -> dict[str, float]:
        return {name: getattr(estimate, name) / divisor for name in ("value", "low", "high")}

    return {
        "layout": msgspec.structs.asdict(one.layout), "fits": one.fits, "bytes_per_device": one.bytes_per_device,
        "usable_bytes": one.usable_bytes, "ttft_s": None, "tpot_s": None,
        "tokens_per_s_per_device": ends(one.tokens_per_s, one.layout.world_size), "step_s": one.step_s.value,
        "step_s_low": one.step_s.low, "step_s_high": one.step_s.high, "mfu": one.mfu, "days": ends(one.days),
        "bubble": one.bubble, "micro_batch": one.micro_batch, "micro_batches": one.micro_batches,
        "recompute": one.recompute, "zero": one.zero, "virtual": one.virtual, "schedule": one.schedule,
        "sequence_parallel": one.sequence_parallel, "offload": one.offload, "host_bytes": one.host_bytes,
        "stages": one.stages, "step_seconds": one.step_seconds, "limits": [*one.limits, *notes],
        "explanation": one.explanation, "comparison": one.comparison,
    }  # fmt: skip


def training_notes(model: ModelSpec, target: Target, known: Generation) -> tuple[str, ...]:
    """What the figures assume."""
    told = ["experts are loaded evenly; Adam with master weights and two moments in 32 bits; gradients in 32 bits"]
    if not known.points:
        told.append(f"no step was measured on {target.cluster.device.name} or its generation: shares of its rates are "
                    "the mean of others")
    elif target.cluster.device.arch not in known.archs:
        told.append(f"shares of the rates are those of {known.name}")
    if target.cluster.nodes > 1 and target.cluster.network is None:
        told.append(f"the network between nodes is not stated: {known.network * 8 / 1e9:.0f} Gb/s for each device are "
                    "taken, one port each")
    if target.cluster.device.host_bandwidth is None:
        told.append("offload to the host is not looked at: host_bandwidth of the device is not stated")
    if model.mtp_layers:
        told.append("layers of multi-token prediction are not trained along")
    if target.workload.total_tokens == 0:
        told.append("days are those to a trillion tokens: total_tokens is not stated")
    return (*told, *link_notes(target.cluster))
