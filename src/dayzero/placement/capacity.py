"""How long a sequence may be: the longest that has room beside everything else, as the engine allocates for it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dayzero.schema import Layout, ModelSpec, Target, Workload

from .memory import device_bytes, one_sequence

_GROWING = ("kv_cache", "state")
_FINE = 1000
"""The result is right within one part of so many."""


def longest_sequence(model: ModelSpec, layout: Layout, stages: Iterable[range], target: Target) -> int:
    """Tokens of the longest sequence that fits with one on each replica, prompts cut into steps of max_batched_tokens;
    at most as long as the model takes, and where that is not known as the workload's. 0: none fits. `stages`: the
    layers of each pipeline stage that differs from the others. Raises ReleaseError as `device_bytes` does."""
    workload, most = target.workload, model.max_positions or target.workload.length
    full = _of(target, workload, layout, workload.max_batched_tokens)
    left = []
    for layers in stages:
        causes = device_bytes(model, layout, layers, full)
        fixed = sum(size for cause, size in causes.items() if cause not in _GROWING)
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
