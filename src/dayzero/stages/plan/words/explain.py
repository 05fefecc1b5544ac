"""A plan in words: why a candidate ranks where it does, what limits it, what the others lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from dayzero.schema import Candidate, Change, Limits, Plan, Size, Target, Trained
from dayzero.stages.plan.choice.limits import missed, verdict
from dayzero.stages.plan.choice.reasons import compared, lacks
from dayzero.units import format_bytes, format_seconds

NOTABLE = 0.03
"""Share by which workers apart have to be ahead to be spoken of."""


class Counts(NamedTuple):
    """How many layouts there are."""

    legal: int
    """That break no rule."""
    fitting: int
    """Of them those with room for the workload."""
    within: int
    """Of them those that keep to the limits of the target."""


def told(candidates: Sequence[Candidate], places: Sequence[int], counts: Counts, target: Target
         ) -> tuple[Candidate, ...]:
    """The candidates with their explanations; `places`: their ranks, from 1. The first one is what others are compared
    with."""
    judged = [msgspec.structs.replace(one, within=not missed(target.limits, figures(one)))
              for one in candidates]
    return tuple(msgspec.structs.replace(one, explanation=why(one, judged[0], place, counts, target.limits),
                                         comparison=against(one, judged[0], target))
                 for one, place in zip(judged, places, strict=True))


def why(candidate: Candidate, first: Candidate, place: int, counts: Counts, limits: Limits) -> str:
    """Two sentences: the rank and its reason, then the room."""
    need, usable = format_bytes(candidate.need_bytes), format_bytes(candidate.usable_bytes)
    if not candidate.fits:
        cause = max(candidate.bytes_per_device, key=lambda name: candidate.bytes_per_device[name])
        return (f"Does not fit: the fullest device needs {need} of {usable}, most of it {cause.replace('_', ' ')}. "
                f"{counts.fitting} of {counts.legal} legal layouts fit.")
    share = candidate.tokens_per_s.value / first.tokens_per_s.value
    behind = "as fast as the first" if abs(share - 1) <= 0.005 else f"{share:.0%} of the first"
    kept = counts.within < counts.fitting and candidate.within
    those = f"{counts.within} that fit and keep to the limits" if kept else f"{counts.fitting} that fit"
    rank = f"First of {those}" if place == 1 else f"Number {place} of {those}, {behind}"
    breaks = "" if candidate.within else f" It breaks limits: {missed(limits, figures(candidate))}."
    return (f"{rank}: {rate(candidate.tokens_per_s.value)} tokens/s ({candidate.limits[0]}); {mostly(candidate)}. "
            f"The fullest device needs {need} of {usable}; {candidate.max_sequences:,} sequences of full length fit"
            f"{longest(candidate)}.{breaks}{arrive(candidate)}{moved(candidate)}")


def longest(candidate: Candidate) -> str:
    """How long a sequence may be that has a replica for itself."""
    return f", or one of {candidate.max_context:,} tokens on each replica" if candidate.max_context else ""


def arrive(candidate: Candidate) -> str:
    """What random arrivals make of it."""
    found = candidate.arrivals
    if found is None:
        return ""
    first, gap = (", ".join(f"{name} {format_seconds(value)}" for name, value in percentiles.items())
                  for percentiles in (found.ttft_percentiles, found.gap_percentiles))
    what = "tokens" if found.tokens_of_pass == 1 else f"passes, which give {found.tokens_of_pass:.3g} tokens each,"
    return (f" At {found.rate:.3g} requests a second, of the {found.capacity:.3g} that it keeps up with, "
            f"{rate(found.sequences)} sequences are decoded at a time; first token {first}; between {what} {gap}.")


def moved(candidate: Candidate) -> str:
    """What it keeps outside of the devices."""
    found = candidate.offload
    if found is None:
        return ""
    shares = ", ".join(f"{share:.0%} of {what}" for what, share in found.shares.items() if share)
    disk = f" and {format_bytes(found.disk_bytes)} on disk" if found.disk_bytes else ""
    return (f" It keeps {shares} outside of the devices: {format_bytes(found.host_bytes)} of each in the host's "
            f"memory{disk}; a token takes at least {format_seconds(found.bound_s)} for it.")


def figures(candidate: Candidate) -> dict[str, float]:
    """What limits are about."""
    return {"ttft_s": candidate.ttft_s.value, "tpot_s": candidate.tpot_s.value,
            "devices": float(candidate.layout.world_size)}


def mostly(candidate: Candidate) -> str:
    """`a token takes 12.3 ms, 62% of it experts`."""
    causes, total = candidate.decode_seconds, candidate.tpot_s.value
    cause = max(causes, key=lambda name: causes[name])
    return f"a token takes {format_seconds(total)}, {causes[cause] / total:.0%} of it {cause.replace('_', ' ')}"


def against(candidate: Candidate, first: Candidate, target: Target) -> str:
    """What it loses against the first, or what it lacks to fit; empty for the first."""
    if not candidate.fits:
        return lacks(candidate, target)
    return compared(first, candidate) if candidate.layout != first.layout and first.fits else ""


def rate(per_second: float) -> str:
    """Tokens a second, to three digits or as a whole number."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def summed_up(plan: Plan) -> Plan:
    """The plan with its summary: the best layout or what is in the way, the limits, the runner-up, the smallest
    cluster."""
    best: Candidate | Trained | None = plan.trained or plan.best
    said = [f"{best.layout.text}: {best.explanation}" if best else nothing(plan)]
    nearest: Candidate | Trained | None = next(iter(plan.training), None) or next(iter(plan.candidates), None)
    if not best and nearest:
        said[0] += f" Nearest is {nearest.layout.text}. {nearest.explanation}"
        said += [f"It needs {nearest.comparison}."] if isinstance(nearest, Candidate) and nearest.comparison else []
    if plan.limits and plan.best and not plan.best.within:
        said += [verdict(plan.limits), *fewer(plan)]
    others: list[Candidate | Trained] = [*plan.candidates[1:], *plan.training[1:]]
    runner_up = next((one for one in others if one.fits and one.comparison), None)
    if runner_up:
        said.append(f"Next is {runner_up.layout.text}: {runner_up.comparison}.")
    return msgspec.structs.replace(plan, summary=(*said, *beside(plan), *map(smallest, plan.smallest)))


def beside(plan: Plan) -> list[str]:
    """That workers apart give more, or where requests arrive at a rate take less time, than the first layout does."""
    if not plan.apart or not plan.best or plan.apart[0].within < plan.best.within:
        return []
    one, best = plan.apart[0], plan.best
    more = one.tokens_per_s.value / best.tokens_per_s.value - 1
    less = 1 - one.tpot_s.value / best.tpot_s.value
    what = f"{more:.0%} more tokens/s" if more > NOTABLE else f"{less:.0%} less time a token" if (
        best.arrivals and less > NOTABLE) else ""
    return [f"Workers apart give {what}: {one.prefill_workers} of {one.prefill.text} that prefill and "
            f"{one.decode_workers} of {one.decode.text} that decode, TPOT {format_seconds(one.tpot_s.value)}, TTFT "
            f"{format_seconds(one.ttft_s.value)}."] if what else []


def nothing(plan: Plan) -> str:
    """That nothing fits, or that nothing is legal, with the most frequent reason."""
    if plan.candidates or plan.training or not plan.families:
        return "Nothing fits on this target."
    first = plan.families[0]
    if plan.evaluated == 1:
        return f"{first.example.text} breaks a rule, {first.rule}: {first.message}."
    which = f" ({first.text})" if first.degrees else ""
    return (f"All {plan.evaluated:,} layouts break a rule, {first.layouts:,} of them {first.rule}{which}: "
            f"{first.message}.")


def fewer(plan: Plan) -> list[str]:
    """With how many sequences at most the limits can be kept on this cluster."""
    kept = [point for point in plan.front if point.within]
    if not kept or plan.workload.get("arrival_rate"):
        return []
    most = max(kept, key=lambda point: (point.concurrency, point.tokens_per_s_per_device))
    return [f"With {most.concurrency:,} sequences instead of {plan.workload['concurrency']:,} {most.layout.text} keeps "
            f"to the limits: TPOT {format_seconds(most.tpot_s)}, TTFT {format_seconds(most.ttft_s)}, "
            f"{rate(most.tokens_per_s_per_device * most.layout.world_size)} tokens/s."]


def smallest(size: Size) -> str:
    """`The smallest cluster that fits has 3 x 8 devices: tp=8 pp=3, TPOT 12 ms ...`."""
    what = "fits" if size.works == "fits" else "keeps to the limits"
    if size.layout is None:
        return f"No cluster that {what} was found {size.reason}."
    shown = f"{size.nodes} x {size.devices_per_node}" if size.nodes > 1 else f"{size.devices}"
    devices = "device" if size.devices == 1 else "devices"
    return f"The smallest cluster that {what} has {shown} {devices}: {size.layout.text}, {figures_text(size.figures)}."


def figures_text(values: Mapping[str, float]) -> str:
    """`TPOT 12 ms, TTFT 1.2 s, 5,430 tokens/s`."""
    names = {"step_s": "a step", "tpot_s": "TPOT", "ttft_s": "TTFT"}
    told = [f"{name} {format_seconds(values[key])}" for key, name in names.items() if key in values]
    return ", ".join([*told, f"{rate(values['tokens_per_s'])} tokens/s"])


def shifted(change: Change) -> dict[str, float]:
    """By what share each figure of the first changes."""
    return {name: after / change.before[name] - 1 for name, after in change.after.items()}
