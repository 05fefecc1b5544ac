"""A plan for the terminal: sentences, then tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dayzero.schema import Candidate, Change, Disaggregated, Family, Layout, Plan, Point, Rejected, Trained, Variant
from dayzero.stages.plan.choice.pareto import thinned
from dayzero.stages.plan.training import training_table
from dayzero.units import format_bytes, format_seconds

from .explain import rate, shifted
from .link_notes import NOMINAL

Planned = TypeVar("Planned", Candidate, Trained)
_FAMILIES, _POINTS, _APART = 12, 16, 5
"""Families of rejected layouts, trade-offs, and workers apart that are shown."""
NEXT_TO_NOTHING = 0.002
"""Share of the whole up to which a cause has no line of its own."""


def _table(title: str, *headings: str, wide: Sequence[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", expand=False)
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading not in wide)
    return table


def _candidate_table(candidates: Sequence[Candidate], load: str) -> Table:
    table = _table(f"Layouts, best first{load}", "layout", "fits", "memory", "TTFT", "TPOT", "tokens/s", "bound by",
                   wide=("layout", "bound by"))
    for one in candidates:
        per_second = one.tokens_per_s
        figures = [format_seconds(one.ttft_s.value), format_seconds(one.tpot_s.value),
                   f"{rate(per_second.value)} ({rate(per_second.low)}-{rate(per_second.high)})",
                   one.limits[0].removeprefix("decode: ").partition(" %")[0] + " %"]
        table.add_row(one.layout.text, "no" if not one.fits else "yes" if one.within else "beyond limits",
                      format_bytes(one.need_bytes), *(figures if one.fits else ["-"] * len(figures)),
                      style="" if one.fits and one.within else "dim")
    return table


def _family_table(families: Sequence[Family]) -> Table:
    table = _table("Layouts that do not work", "layouts", "rule", "why", "how many", wide=("layouts", "why"))
    for family in families[:_FAMILIES]:
        table.add_row(family.text if family.degrees or family.layouts == 1 else f"{family.text} and others",
                      family.rule, family.message, f"{family.layouts:,}")
    if len(families) > _FAMILIES:
        table.add_row("", "", f"{len(families) - _FAMILIES} more reasons: see --json or the report",
                      f"{sum(family.layouts for family in families[_FAMILIES:]):,}")
    return table


def _front_table(front: Sequence[Point], latency: str) -> Table:
    """Against one latency; the terminal shows some of many."""
    table = _table(f"Throughput against {latency.upper()}: nothing beats these", "tokens/s a device", "tokens/s a user",
                   "TPOT", "TTFT", "sequences", "layout", wide=("layout",))
    for point in thinned([point for point in front if latency in point.best_for], _POINTS):
        table.add_row(rate(point.tokens_per_s_per_device), rate(point.tokens_per_s_per_user),
                      format_seconds(point.tpot_s), format_seconds(point.ttft_s), f"{point.concurrency:,}",
                      point.layout.text, style="" if point.within else "dim")
    return table


def _apart_table(apart: Sequence[Disaggregated]) -> Table:
    table = _table("Workers that only prefill, and workers that only decode", "prefill", "decode", "devices", "TTFT",
                   "TPOT", "tokens/s", "waits for", wide=("prefill", "decode"))
    for one in apart[:_APART]:
        table.add_row(f"{one.prefill_workers} x {one.prefill.text}", f"{one.decode_workers} x {one.decode.text}",
                      str(one.devices), format_seconds(one.ttft_s.value), format_seconds(one.tpot_s.value),
                      rate(one.tokens_per_s.value), one.waits_for, style="" if one.within else "dim")
    return table


def _variant_table(variants: Sequence[Variant]) -> Table:
    table = _table("In other precisions", "weights", "bytes", "layout", "TTFT", "TPOT", "tokens/s", "sequences",
                   wide=("weights", "layout"))
    for one in variants:
        figures = ["-"] * 3
        if one.ttft_s and one.tpot_s and one.tokens_per_s:
            figures = [format_seconds(one.ttft_s.value), format_seconds(one.tpot_s.value), rate(one.tokens_per_s.value)]
        weights = f"{one.precision}, {'as released' if one.released else 'to be made'}"
        table.add_row(weights, format_bytes(one.checkpoint_bytes), one.layout.text if one.layout else "none fits",
                      *figures, f"{one.max_sequences:,}")
    return table


def _sensitivity_table(changes: Sequence[Change]) -> Table:
    names = {"tpot_s": "TPOT", "ttft_s": "TTFT", "step_s": "step", "tokens_per_s": "tokens/s"}
    shown = [name for name in names if name in changes[0].before]
    table = _table("If rates were others", "rate", *(names[name] for name in shown), "then first", wide=("then first",))
    for change in changes:
        table.add_row(f"{change.resource} {change.factor - 1:+.0%}",
                      *(f"{shifted(change)[name]:+.1%}" if change.after else "-" for name in shown),
                      change.turns)
    return table


def _note(text: str) -> Text:
    """One of the notes; that links are only nominal is a warning."""
    return Text(f"warning: {text}", style="yellow") if text.startswith(NOMINAL) else Text(f"note: {text}", style="dim")


def overview(plan: Plan, shown: int = 10, *, front: bool = False) -> RenderableType:
    """The plan for a terminal: sentences, the best candidates, what rates would change, the rejected layouts by
    reason, the notes; with `front` the trade-offs too."""
    parts: list[RenderableType] = [Text(sentence) for sentence in plan.summary]
    if plan.candidates:
        parts += [_candidate_table(plan.candidates[:shown], _load(plan.workload)), *_rest(plan.candidates, shown)]
    if plan.training:
        parts += [training_table(plan.training[:shown]), *_rest(plan.training, shown)]
    if front and plan.front:
        parts += [_front_table(plan.front, latency) for latency in ("tpot", "ttft")]
    if plan.apart:
        parts.append(_apart_table(plan.apart))
    if plan.variants:
        parts.append(_variant_table(plan.variants))
    if plan.sensitivity:
        parts.append(_sensitivity_table(plan.sensitivity))
    if plan.families:
        parts.append(_family_table(plan.families))
    parts.append(Text(f"{plan.evaluated:,} layouts in {format_seconds(plan.seconds)}", style="dim"))
    parts += [_note(note) for note in plan.notes]
    return Group(*parts)


def _load(workload: Mapping[str, Any]) -> str:
    """What the figures are for: `: 64 sequences, 1,024 tokens in, 256 out`."""
    rate_, sequences = workload.get("arrival_rate"), workload.get("concurrency")
    if not (rate_ or sequences):
        return ""
    many = f"{rate_:.3g} requests a second" if rate_ else f"{sequences:,} sequences"
    return f": {many}, {workload['input_tokens']:,} tokens in, {workload['output_tokens']:,} out"


def _rest(kept: Sequence[Planned], shown: int) -> Iterator[Text]:
    """That the plan keeps more than the table has."""
    if len(kept) > shown:
        yield Text(f"{shown} of the {len(kept)} that are kept (--top): the others are in the report, in --json and "
                   "under --explain", style="dim")


def explanation(plan: Plan, wanted: Sequence[Layout]) -> RenderableType:
    """Why each of the wanted layouts is where it is: its rank and figures by cause beside those of the first, or every
    rule that it breaks."""
    parts: list[RenderableType] = []
    for layout in wanted:
        broken = [one for one in plan.rejected if one.layout == layout]
        candidate = next((one for one in plan.candidates if one.layout == layout), None)
        trained = next((one for one in plan.training if one.layout == layout), None)
        if broken:
            parts.append(_broken(layout, broken))
        elif candidate:
            parts.append(_candidate(candidate, plan.candidates[0]))
        elif trained:
            parts.append(_trained(trained, plan.training[0]))
        else:
            parts.append(Text(f"{layout.text}: not looked at. In training tp stays within a node." if plan.training else
                              f"{layout.text}: not looked at."))
    return Group(*parts)


def _broken(layout: Layout, broken: Sequence[Rejected]) -> RenderableType:
    return Group(Text(f"{layout.text}: rejected"), *(Text(f"  {one.rule}: {one.message}") for one in broken))


def _candidate(candidate: Candidate, first: Candidate) -> RenderableType:
    parts: list[RenderableType] = [Text(f"{candidate.layout.text}: {candidate.explanation}")]
    if candidate.comparison:
        parts.append(Text(f"Against {first.layout.text}: {candidate.comparison}." if candidate.fits
                          else f"It needs {candidate.comparison}."))
    if candidate.fits:
        parts += [Text("; ".join(candidate.limits)),
                  _by_cause("Time for a token", candidate, first, lambda one: one.decode_seconds, format_seconds),
                  _by_cause("Time to the first token", candidate, first, lambda one: one.prefill_seconds,
                            format_seconds)]
    parts += [_by_cause("Memory of the fullest device", candidate, first, lambda one: one.bytes_per_device,
                        lambda size: format_bytes(round(size))),
              _by_cause("Its weights", candidate, first, lambda one: one.weights,
                        lambda size: format_bytes(round(size)))]
    return Group(*parts)


def _trained(one: Trained, first: Trained) -> RenderableType:
    parts: list[RenderableType] = [Text(f"{one.layout.text}: {one.explanation}"), training_table([one])]
    if one.comparison:
        parts.append(Text(f"Against {first.layout.text}: {one.comparison}."))
    if one.fits:
        parts.append(_by_cause("Time of a step", one, first, lambda each: each.step_seconds, format_seconds))
    parts.append(_by_cause("Memory of the fullest device", one, first, lambda each: each.bytes_per_device,
                           lambda size: format_bytes(round(size))))
    return Group(*parts)


def _by_cause(title: str, candidate: Planned, first: Planned, causes: Callable[[Planned], Mapping[str, float]],
              text: Callable[[float], str]) -> Table:
    """Both layouts cause by cause, what is next to nothing in both together; one column for the first itself."""
    shown = [candidate] if candidate.layout == first.layout else [candidate, first]
    table = _table(title, "cause", *(one.layout.text for one in shown))
    parts, wholes = [causes(one) for one in shown], [sum(causes(one).values()) for one in shown]
    names = sorted({name for part in parts for name in part}, key=lambda name: -parts[0].get(name, 0.0))
    small = [name for name in names if all(part.get(name, 0.0) <= NEXT_TO_NOTHING * whole
                                           for part, whole in zip(parts, wholes, strict=True))]
    for name in names:
        if name not in small:
            table.add_row(name.replace("_", " "), *(text(part.get(name, 0.0)) for part in parts))
    if any(part.get(name) for part in parts for name in small):
        table.add_row("others", *(text(sum(part.get(name, 0.0) for name in small)) for part in parts))
    table.add_row("in all", *map(text, wholes), style="bold")
    return table
