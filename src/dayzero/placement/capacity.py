"""How many sequences fit at the same time and how long one may be, as the engine allocates for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

import msgspec

from dayzero.arrays import Value, ceiling, choose, floor, largest
from dayzero.schema import Layout, ModelSpec, Target, Workload

from .many import Layouts, Ranges
from .memory import attention_sequences, device_bytes, one_sequence, sequences_per_replica, shared_prefix

_GROWING = ("kv_cache", "state", "logits")
"""Causes that grow with the sequences."""
_FINE = 1000
"""The result is right within one part of so many."""


def sequences_of_stage(model: ModelSpec, layout: Layout | Layouts, layers: range | Ranges, target: Target,
                       causes: Mapping[str, Value]) -> Value:
    """Sequences of full length for which the stage has room, on each replica: what is left beside everything that does
    not grow with them. Where groups of ranks within tp have attention of their own, each of them holds one of as many
    sequences as there are groups. `causes`: what `device_bytes` gives for the workload."""
    common = shared_prefix(model, layout, layers, target)
    sequences, groups = sequences_per_replica(target.workload, layout), layout.tp // layout.attention_degree
    kept = ceiling(attention_sequences(layout, sequences))
    each = (causes["kv_cache"] - common + causes["state"]) / kept + groups * causes["logits"] / sequences
    fixed = common + sum(size for cause, size in causes.items() if cause not in _GROWING)
    free = largest(0, target.cluster.usable_bytes - fixed)
    none = choose(free > 0, inf, 0.0)  # a stage that has room and keeps nothing of a sequence limits nothing
    return groups * choose(each > 0, floor(free / choose(each > 0, each, 1.0)), none)


def longest_sequence(model: ModelSpec, layout: Layout, stages: Iterable[range], target: Target) -> int:
    """Tokens of the longest sequence that fits with one on each replica, prompts cut into steps of max_batched_tokens;
    at most as long as the model takes, and where that is not known as the workload's. 0: none fits. `stages`: the
    layers of each pipeline stage that differs from the others. Raises ReleaseError as `device_bytes` does."""
    workload, most = target.workload, model.max_positions or target.workload.length
    full = _of(target, workload, layout, workload.max_batched_tokens)
    left = []
    for layers in stages:
        causes = device_bytes(model, layout, layers, full)
        fixed = sum(size for cause, size in causes.items() if cause not in ("kv_cache", "state"))
        left.append((layers, target.cluster.usable_bytes - fixed))

    def fits(length: int) -> bool:
        asked = _of(target, workload, layout, length)
        return all(sum(one_sequence(model, layout, layers, asked)) <= free for layers, free in left)

    if fits(most):
        return most
    low, high = 0, most
    while high - low > max(1, high // _FINE):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _of(target: Target, workload: Workload, layout: Layout, length: int) -> Target:
    """The target with one sequence of that many tokens on each replica."""
    alone = msgspec.structs.replace(workload, concurrency=layout.dp, input_tokens=max(1, length), output_tokens=0,
                                    prefix_hit=0.0)
    return msgspec.structs.replace(target, workload=alone)
