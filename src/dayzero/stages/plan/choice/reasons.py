"""Why one layout is behind another, cause by cause; and what one that does not fit lacks, and what would help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dayzero.schema import Candidate, Target
from dayzero.units import format_bytes, format_seconds

SHOWN = 3
"""Causes that are named."""
WORTH = 0.1
"""Share of the largest difference from which another one is named."""
ALIKE = 0.005
"""Share below which two figures are the same."""
GROWING = ("kv_cache", "state", "logits")
"""Causes of memory that grow with the sequences that are served."""
OF_A_STEP = ("activations", "communication")
"""Causes of memory that grow with the tokens of a prefill step."""


class Difference(NamedTuple):
    """One cause in two layouts."""

    cause: str
    """Its name."""
    first: float
    """In the one."""
    other: float
    """In the other."""


def differences(first: Mapping[str, float], other: Mapping[str, float]) -> list[Difference]:
    """The causes that differ most, the largest first: those of at least a tenth of the largest difference."""
    found = [Difference(cause, first.get(cause, 0.0), other.get(cause, 0.0)) for cause in {**first, **other}]
    found.sort(key=lambda one: -abs(one.other - one.first))
    least = abs(found[0].other - found[0].first) * WORTH if found else 0.0
    return [one for one in found if abs(one.other - one.first) > least or one is found[0]][:SHOWN]


def by_cause(first: Mapping[str, float], other: Mapping[str, float], *, slower: bool) -> str:
    """`communication 1.8 ms -> 3.1 ms, in spite of experts 2.2 ms -> 2 ms`, where the other one is slower in all."""
    found = [one for one in differences(first, other) if one.first != one.other]
    reasons, against = (", ".join(map(_changed, part)) for part in (
        [one for one in found if (one.other > one.first) == slower],
        [one for one in found if (one.other > one.first) != slower]))
    return ", ".join(filter(None, (reasons, against and f"in spite of {against}")))


def _changed(one: Difference) -> str:
    return f"{one.cause.replace('_', ' ')} {format_seconds(one.first)} -> {format_seconds(one.other)}"


def compared(first: Candidate, other: Candidate) -> str:
    """What `other` loses or gains against `first`: throughput with the causes of a token's time, then the time to the
    first token with those of the prompt's. Both have room."""
    throughput = other.tokens_per_s.value / first.tokens_per_s.value - 1
    if abs(throughput) > ALIKE:
        share = f"{'gains' if throughput > 0 else 'loses'} {abs(throughput):.0%}"
        causes = by_cause(first.decode_seconds, other.decode_seconds, slower=throughput < 0)
        parts = [f"{share}: {causes} a token" if causes else share]
    else:
        parts = ["as fast"]
    waiting = other.ttft_s.value / first.ttft_s.value - 1
    if abs(waiting) > ALIKE:
        causes = by_cause(first.prefill_seconds, other.prefill_seconds, slower=waiting > 0)
        parts.append(f"first token {abs(waiting):.0%} {'later' if waiting > 0 else 'sooner'}"
                     + (f": {causes}" if causes else ""))
    return "; ".join(parts)


def lacks(candidate: Candidate, target: Target) -> str:
    """What the fullest device lacks, the causes that take most, and what would make the layout fit."""
    needs = sorted(candidate.bytes_per_device.items(), key=lambda item: -item[1])[:2]
    largest = ", ".join(f"{cause.replace('_', ' ')} {format_bytes(size)}" for cause, size in needs if size)
    return (f"{format_bytes(candidate.need_bytes - candidate.usable_bytes)} more than the "
            f"{format_bytes(candidate.usable_bytes)} of a device ({largest}): {remedy(candidate, target)}")


def remedy(candidate: Candidate, target: Target) -> str:
    """What would make the layout fit: fewer sequences, shorter steps of prefill, shorter sequences, or more devices
    that share the weights."""
    needs, usable, workload = candidate.bytes_per_device, candidate.usable_bytes, target.workload
    if candidate.max_sequences:
        return f"{candidate.max_sequences:,} of the {workload.concurrency:,} sequences have room"
    growing, stepping = (sum(needs.get(cause, 0) for cause in causes) for causes in (GROWING, OF_A_STEP))
    still = candidate.need_bytes - growing - stepping
    if still < usable and still + stepping >= usable:
        tokens = int(workload.max_batched_tokens * (usable - still) / stepping)
        return f"steps of prefill would have to be shorter than {tokens:,} tokens (max_batched_tokens)"
    if still < usable:
        return "not one sequence of full length has room: shorter ones, or more devices for a replica"
    weights = needs.get("weights", 0)
    free = usable - (still - weights)
    if free <= 0:
        return "even without weights there is no room: devices with more memory"
    return f"its weights have to be shared by {weights / free:.2g} times as many devices, or each needs more memory"
