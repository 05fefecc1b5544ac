"""Memory is cut so that all groups can use it, and little of it is lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.errors import UsageError
from dayzero.runtime.pages import ALL, Group, Room, block_tokens, cut
from dayzero.runtime.pages.room import chunk_bytes, units

_FULL, _NEAR, _STATES = Group(ALL), Group(128), Group(None)
MB = 2**20


def test_short_sequences_have_short_blocks() -> None:
    assert [block_tokens(lengths) for lengths in ([3000, 500], [768], [600], [384], [230, 300], [5])] == [
        16, 16, 8, 8, 4, 4]


def test_one_group_has_one_chunk() -> None:
    assert cut({_FULL: (4096, 4096)}, 10 * MB, block_tokens=16, lengths=[100]) == Room(1, (1280,))
    assert cut({_FULL: (4096,), _STATES: (0,)}, 10 * MB, block_tokens=16, lengths=[100, 50, 20], sequences=2) == Room(
        1, (7 + 4, 0))
    assert cut({_FULL: ()}, 10 * MB, block_tokens=16, lengths=[100]) == Room(1, (0,))


def test_too_little_memory_is_told() -> None:
    with pytest.raises(UsageError, match=r"does not hold one sequence of 2000 tokens: it takes"):
        cut({_FULL: (65536,), _STATES: (MB,)}, 5 * MB, block_tokens=16, lengths=[10, 2000])
    with pytest.raises(UsageError, match="does not hold one sequence"):
        cut({_FULL: (65536,)}, MB, block_tokens=16, lengths=[2000])


def test_few_sequences_take_no_more_than_they_need() -> None:
    room = cut({_FULL: (65536,) * 4, _STATES: (MB,)}, 2000 * MB, block_tokens=16, lengths=[320, 160], sequences=2)
    assert room.fits((30, 0, 0)[:2]) and room.fits((20 + 10, 2))
    assert room.chunks * chunk_bytes(room, {_FULL: (65536,) * 4, _STATES: (MB,)}, 16) < 2.5 * (30 * 4 * 65536 + 2 * MB)


def test_long_states_lie_in_several_chunks() -> None:
    """30 sequences of 23 layers' states: a whole one would take 1/32 of the memory, and so would a few tokens."""
    parts = {_FULL: (6 * 32768,), _STATES: (81920, 4 * MB) * 23}
    memory = 30 * (sum(parts[_STATES]) + 500 // 16 * 6 * 32768)
    room = cut(parts, memory, block_tokens=16, lengths=[400, 600])
    size = chunk_bytes(room, parts, 16)
    assert room.holds[1] == 1 and room.chunks * size <= memory < (room.chunks + 1) * size
    assert room.span(1) * size < 1.02 * sum(parts[_STATES])
    assert size < memory / 100
    assert room.fits((31, 29)) and not room.fits((0, 32))
    assert Room.of(room.numbers) == room


@given(st.lists(st.integers(1, 300).map(lambda size: 16 * size), min_size=1, max_size=30), st.integers(1, 30))
def test_units_are_as_short_as_they_can_be(sizes: list[int], span: int) -> None:
    of = units(sizes, span)
    assert of[0] == 0 and of[-1] < span and all(later - unit in (0, 1) for unit, later in pairwise(of))
    room = Room(span, (1,), (span,))
    length = chunk_bytes(Room(2 * span, (1,), (span,)), {_STATES: sizes}, 16)
    held = [sum(-(-size // 64) * 64 for size, own in zip(sizes, of, strict=True) if own == unit)
            for unit in range(span)]
    assert max(held) == length >= max(sizes) and length * span >= sum(sizes)
    assert room.fits((1,)) and not room.fits((2,))


@settings(deadline=None, max_examples=60)
@given(tokens=st.lists(st.sampled_from([256, 512, 1152, 1024, 2048, 2560, 640]), min_size=1, max_size=12),
       near=st.lists(st.sampled_from([512, 1024, 2048, 768]), max_size=20),
       states=st.lists(st.integers(1, 2048).map(lambda size: 512 * size), max_size=20), hundreds=st.integers(1, 10))
def test_little_of_a_chunk_is_lost(tokens: list[int], near: list[int], states: list[int], hundreds: int) -> None:
    parts = {_FULL: tuple(16 * each for each in tokens), _NEAR: tuple(2 * each for each in near),
             _STATES: tuple(states)}
    one = sum(tokens) * 700 + sum(near) * 128 + sum(states)
    memory = 100 * hundreds * one
    room = cut(parts, memory, block_tokens=16, lengths=[600, 800])
    size = chunk_bytes(room, parts, 16)
    assert 0.98 * memory < room.chunks * size <= memory
    kept = [group for group in parts if parts[group]]
    lost = 0.0
    for number, (group, holds) in enumerate(zip(parts, room.holds, strict=True)):
        block = sum(parts[group])
        share = block * (700 // 16 if group is _FULL else 64 if group is _NEAR else 1) / one
        lost += share * (1 - holds * block / (room.span(number) * size))
        lost += (holds - 1) * block / 2 / memory if len(kept) > 1 and holds else 0
    assert lost < 0.03
    assert room.chunks == 1 or all(size % (each // group.tokens(16)) == 0 for group in (_FULL, _NEAR)
                                   for each in parts[group])
