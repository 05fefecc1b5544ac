"""Bytes are divided as the module says, and what is too little is refused with what would do."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.errors import UsageError
from dayzero.runtime.tiers.budget import Sizes, Split, split

KIND = ("experts",)
SIZES = Sizes(layers=(100,) * 10, head=400, block=50, table=300, experts={KIND: (20, 64, 4)})


def at(room: int) -> Split:
    return split(SIZES, room, "--host-memory", 0)


def test_layers_and_head_before_experts_before_the_table() -> None:
    least = 2 * 100 + 2 * 50 + 2 * 20
    assert SIZES.least() == least
    tight = at(least)
    assert (tight.layers, tight.staging, tight.slots[KIND]) == (frozenset(), 2, 2)
    assert not tight.head and not tight.table
    assert at(least + 40).slots[KIND] == 4  # a token's choice
    assert at(least + 40 + 300).head and not at(least + 40 + 299).head  # its two blocks become free
    assert at(least + 340 + 250).layers == {0, 5}  # spread
    dense = least + 340 + 800  # all ten, and the two slots become free
    assert (len(at(dense).layers), at(dense).staging, at(dense).slots[KIND]) == (10, 0, 4)
    assert at(dense + 60 * 20).slots[KIND] == 64 and not at(dense + 60 * 20 + 299).table
    assert at(dense + 60 * 20 + 300).table


def test_too_little_is_refused_with_the_least() -> None:
    with pytest.raises(UsageError, match=re.escape("the least is 1.31 KiB, 1000 B of it")) as caught:
        split(SIZES, 339, "--host-memory", 1000)
    assert caught.value.hint == "give --host-memory 1340 bytes or more"


@given(st.lists(st.integers(1, 500), min_size=1, max_size=12), st.integers(0, 900), st.integers(0, 900),
       st.lists(st.tuples(st.integers(1, 50), st.integers(1, 80), st.integers(1, 8)), max_size=3),
       st.integers(0, 20_000))
def test_never_more_than_there_is(layers: list[int], head: int, table: int, experts: list[tuple[int, int, int]],
                                  more: int) -> None:
    sizes = Sizes(layers=tuple(layers), head=head, block=head // 3, table=table,
                  experts={(number,): each for number, each in enumerate(experts)})
    room = sizes.least() + more
    made = split(sizes, room, "--host-memory", 0)
    kept = (sum(layers[each] for each in made.layers) + made.staging * max(layers) + (table if made.table else 0)
            + (head if made.head else 2 * sizes.block)
            + sum(made.slots[(number,)] * each for number, (each, _, _) in enumerate(experts)))
    assert kept <= room and all(made.slots[(number,)] <= count for number, (_, count, _) in enumerate(experts))
    assert made.used >= kept
