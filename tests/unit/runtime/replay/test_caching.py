"""torch's caching allocator by its rules: sizes as c10/cuda/CUDACachingAllocator.cpp of torch 2.13 has them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.runtime.pool import OutOfMemory
from dayzero.runtime.replay import CachingModel
from dayzero.runtime.replay.caching import Piece

MIB = 2**20


@pytest.mark.parametrize("asked, reserved, allocated", [
    (1, 2 * MIB, 512), (MIB, 2 * MIB, MIB), (MIB + 1, 20 * MIB, MIB + 512), (10 * MIB - 512, 20 * MIB, 10 * MIB - 512),
    (10 * MIB, 10 * MIB, 10 * MIB), (11 * MIB, 12 * MIB, 12 * MIB),  # 1 MiB is left and not more: not split off
    (11 * MIB - 512, 12 * MIB, 11 * MIB - 512)])
def test_what_one_request_reserves(asked: int, reserved: int, allocated: int) -> None:
    model = CachingModel(100 * MIB)
    model.take(asked)
    assert (model.reserved, model.allocated) == (reserved, allocated)


def test_segments_are_shared_by_their_size_and_stream() -> None:
    model = CachingModel(200 * MIB)
    for _ in range(10):
        model.take(2 * MIB)
    assert model.reserved == 20 * MIB
    model.take(2 * MIB)
    assert model.reserved == 40 * MIB
    model.take(1000)  # small ones have their own
    assert model.reserved == 42 * MIB
    model.take(1000, stream=1)  # and so has each stream
    assert model.reserved == 44 * MIB


def test_neighbours_merge_and_are_used_again() -> None:
    model = CachingModel(20 * MIB)
    pieces = [model.take(2 * MIB) for _ in range(10)]
    for index in (4, 2, 3):
        model.give(pieces[index])
    assert model.take(6 * MIB).start == pieces[2].start
    assert model.reserved == 20 * MIB


def test_segments_go_back_only_whole_and_only_when_there_is_no_more() -> None:
    model = CachingModel(40 * MIB)
    first = model.take(12 * MIB)
    model.give(first)
    model.take(14 * MIB)
    assert (model.reserved, model.releases) == (26 * MIB, 0)
    model.take(20 * MIB)  # 12 MiB go back for it
    assert (model.reserved, model.releases) == (34 * MIB, 1)
    with pytest.raises(OutOfMemory) as caught:
        model.take(8 * MIB)  # 6 MiB are left, a segment has 20
    assert (caught.value.asked, caught.value.free) == (8 * MIB, 6 * MIB)


def test_expandable_segments_grow_by_pages_and_give_pages_back() -> None:
    model = CachingModel(100 * MIB, expandable=True)
    first = model.take(30 * MIB)
    assert model.reserved == 40 * MIB
    second = model.take(8 * MIB)
    assert (model.reserved, second.start) == (40 * MIB, first.start + 30 * MIB)
    third = model.take(25 * MIB)  # 2 MiB are left: two pages more, behind them
    assert (model.reserved, third.start) == (80 * MIB, first.start + 38 * MIB)
    model.give(first)  # 0 to 30 MiB: one page of it is free as a whole
    fourth = model.take(35 * MIB, stream=1)  # 40 MiB are needed and 20 are there
    assert (model.reserved, model.releases) == (100 * MIB, 1)
    model.give(fourth)
    assert model.take(10 * MIB).start == first.start + 20 * MIB  # what stayed mapped
    assert model.reserved == 100 * MIB


def test_what_is_free_before_new_pages_counts() -> None:
    model = CachingModel(100 * MIB, expandable=True)
    first = model.take(30 * MIB)
    assert model.take(25 * MIB).start == first.start + 30 * MIB  # 10 MiB are there, one page more is enough
    assert model.reserved == 60 * MIB


def test_the_end_that_can_grow_counts_as_long() -> None:
    model = CachingModel(100 * MIB, expandable=True)
    first = model.take(12 * MIB)
    model.take(4 * MIB)
    model.give(first)  # 12 MiB in front are free, and 4 at the end, which are the better fit but can grow
    assert model.take(3 * MIB).start == first.start


def test_a_segment_in_use_does_not_go_back() -> None:
    model = CachingModel(30 * MIB)
    model.take(2 * MIB)
    with pytest.raises(OutOfMemory):
        model.take(19 * MIB)
    assert model.reserved == 20 * MIB


def test_pages_in_a_gap_are_mapped_again_before_the_end_grows() -> None:
    model = CachingModel(60 * MIB, expandable=True)
    pieces = [model.take(20 * MIB) for _ in range(3)]
    model.give(pieces[1])
    model.give(pieces[0])
    other = model.take(30 * MIB, stream=1)  # unmaps both
    model.give(other)
    assert model.take(15 * MIB).start == pieces[0].start


@given(schedule=st.lists(st.tuples(st.integers(1, 30 * MIB), st.booleans(), st.integers(0, 99), st.integers(0, 1)),
                         max_size=60), expandable=st.booleans())
@settings(max_examples=150, deadline=None)
def test_pieces_never_overlap_and_all_comes_back(
        schedule: list[tuple[int, bool, int, int]], expandable: bool) -> None:
    model = CachingModel(200 * MIB, expandable=expandable)
    live: list[Piece] = []
    for nbytes, take, which, stream in schedule:
        if take or not live:
            try:
                piece = model.take(nbytes, stream)
            except OutOfMemory:
                continue
            assert piece.size >= nbytes
            assert piece.start % 512 == 0
            assert all(piece.start + piece.size <= other.start or other.start + other.size <= piece.start
                       for other in live)
            live.append(piece)
        else:
            model.give(live.pop(which % len(live)))
        assert model.allocated == sum(piece.size for piece in live)
        assert model.allocated <= model.reserved <= model.peak_reserved <= model.capacity
    for piece in live:
        model.give(piece)
    model._release()
    assert (model.allocated, model.reserved) == (0, 0)
