"""The longest sequence that fits, against a cache counted by hand."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import dense, device, target

from dayzero.placement import device_bytes
from dayzero.placement.capacity import longest_sequence, sequences_of_stage
from dayzero.schema import Layout, Target

ENTRY = 30 * 2 * 3 * 64 * 2
"""Bytes of a token in all layers of SmolLM2-135M: key and value of three heads of 64, 16 bits."""


def with_room(tokens: int, **workload: object) -> Target:
    """A device that has room for a sequence of so many tokens beside everything else."""
    wide = target(1, on=device(memory_bytes=10**12), **({"concurrency": 1, "input_tokens": 8192} | workload))
    fixed = sum(size for cause, size in device_bytes(dense(), Layout(), range(30), wide).items() if cause != "kv_cache")
    wanted = msgspec.structs.replace(wide.cluster, device=device(memory_bytes=fixed + tokens * ENTRY),
                                     memory_utilization=1.0)
    return msgspec.structs.replace(wide, cluster=wanted)


@given(tokens=st.integers(1, 200_000))
def test_what_is_left_is_filled_with_one_sequence(tokens: int) -> None:
    model = msgspec.structs.replace(dense(), max_positions=10**6)
    assert abs(longest_sequence(model, Layout(), [range(30)], with_room(tokens)) - tokens) <= max(1, tokens // 900)


@given(sequences=st.integers(1, 50), tp=st.sampled_from([1, 3]))
def test_as_many_sequences_as_are_asked_for_fit_in_what_they_take(sequences: int, tp: int) -> None:
    layout, wanted = Layout(tp=tp), target(3, concurrency=sequences, on=device(memory_bytes=10**12))
    causes = device_bytes(dense(), layout, range(30), wanted)
    need = sum(causes.values())
    exact = msgspec.structs.replace(wanted, cluster=msgspec.structs.replace(
        wanted.cluster, device=device(memory_bytes=need), memory_utilization=1.0))
    assert sequences_of_stage(dense(), layout, range(30), exact, causes) == sequences
    less = msgspec.structs.replace(exact, cluster=msgspec.structs.replace(
        exact.cluster, device=device(memory_bytes=need - 1)))
    assert sequences_of_stage(dense(), layout, range(30), less, causes) == sequences - 1


def test_no_longer_than_the_model_takes() -> None:
    model = msgspec.structs.replace(dense(), max_positions=2048)
    assert longest_sequence(model, Layout(), [range(30)], with_room(100_000)) == 2048


def test_the_stage_with_the_least_room_decides() -> None:
    model = msgspec.structs.replace(dense(), max_positions=10**6)
    both = [range(10), range(10, 30)]
    found = longest_sequence(model, Layout(pp=2), both, with_room(50_000))
    assert found == min(longest_sequence(model, Layout(pp=2), [one], with_room(50_000)) for one in both)


def test_weights_that_do_not_fit_leave_no_room() -> None:
    small = target(1, on=device(memory_bytes=10**8))
    assert longest_sequence(dense(), Layout(), [range(30)], small) == 0
