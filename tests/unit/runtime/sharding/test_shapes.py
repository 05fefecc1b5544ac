"""Where a cut dimension goes in a view, against the elements themselves."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from dayzero.runtime.sharding.shapes import between, ranges, regrouped, resolved


def _part(value: torch.Tensor, dim: int, segments: tuple[int, ...], ranks: int, rank: int) -> torch.Tensor:
    return torch.cat([value.narrow(dim, first, last - first) for first, last in ranges(segments, ranks, rank)], dim)


@given(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4), st.data())
def test_a_view_of_the_parts_is_the_part_of_the_view(shape: list[int], data: st.DataObject) -> None:
    dim = data.draw(st.integers(0, len(shape) - 1))
    shape[dim] *= 4
    ranks = data.draw(st.sampled_from([2, 4]))
    segments = data.draw(st.sampled_from([(shape[dim],), (shape[dim] // 2,) * 2]))
    if any(size % ranks for size in segments):
        return
    factors: list[int] = []
    for size in shape:
        while size % 2 == 0 and size > 1:
            factors.append(2)
            size //= 2
        factors.append(size)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(factors)), max_size=3)))
    edges = [0, *cuts, len(factors)]
    new = tuple(math.prod(factors[first:last]) for first, last in pairwise(edges))
    value = torch.arange(math.prod(shape)).view(shape)
    found = regrouped(shape, new, dim, segments, ranks)
    if found is None:
        return
    at, pieces = found
    own = list(new)
    own[at] = sum(pieces) // ranks
    for rank in range(ranks):
        wanted = _part(value.view(new), at, pieces, ranks, rank)
        assert torch.equal(_part(value, dim, segments, ranks, rank).reshape(own), wanted)


def test_heads_come_out_of_a_width_and_go_back() -> None:
    assert regrouped((2, 5, 64), (2, 5, 8, 8), 2, (64,), 2) == (2, (8,))
    assert regrouped((2, 5, 8, 8), (2, 5, 64), 2, (8,), 2) == (2, (64,))
    assert regrouped((3, 8, 5, 16), (24, 5, 16), 1, (8,), 2) == (0, (8, 8, 8))
    assert regrouped((24, 5, 16), (3, 8, 5, 16), 0, (8, 8, 8), 2) == (1, (8,))


def test_three_heads_do_not_come_out_of_two_halves() -> None:
    assert regrouped((2, 192), (2, 3, 64), 1, (192,), 2) is None


def test_small_things() -> None:
    assert resolved((2, -1, 4), 24) == (2, 3, 4)
    assert ranges((8, 4), 2, 1) == ((4, 8), (10, 12))
    assert between((4, 4, 8), 4, 16) == (1, 3) and between((4, 4, 8), 5, 16) is None
