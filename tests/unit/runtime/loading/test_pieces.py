"""Places of values against torch's own operations on the values themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.runtime.loading import pieces
from dayzero.runtime.loading.located import Located, NotMovedError, located

Move = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Numbers:
    """A source whose values are their own places."""

    shape: tuple[int, ...]


def values(tensor: Located) -> torch.Tensor:
    """What the pieces say, -1 where they say nothing."""
    made = torch.full(tuple(tensor.shape), -1)
    for piece in tensor.pieces:
        numbers = torch.arange(prod(piece.source.shape))
        box = tuple(slice(at, at + size) for at, size in zip(piece.at, piece.size, strict=True))
        assert (made[box] == -1).all()
        made[box] = torch.as_strided(numbers, piece.size, piece.strides, piece.start)
    return made


def _interleaved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(*tensor.shape[:-1], -1, 2).transpose(-1, -2).reshape(tensor.shape)


MOVES: dict[str, Move] = {
    "transpose": lambda each: each.transpose(0, -1).contiguous(),
    "cat": lambda each: torch.cat([each, each], -1),
    "stack": lambda each: torch.stack([each, each], 1),
    "chunk": lambda each: each.chunk(2, 0)[0],
    "step": lambda each: each[..., 1::2],
    "flat": lambda each: each.reshape(-1),
    "rows": lambda each: each.reshape(each.shape[0], -1),
    "axis": lambda each: each.unsqueeze(0),
    "squeeze": lambda each: each.squeeze(),
    "halves": lambda each: each.reshape(2, -1) if each.numel() % 2 == 0 else each,
    "split": lambda each: each.reshape(-1, 2, 3) if each.numel() % 6 == 0 else each,
    "rest": lambda each: each.split([1, each.shape[0] - 1])[1] if each.shape[0] > 1 else each,
    "turn": lambda each: each.permute(*range(1, each.dim()), 0),
    "first": lambda each: each.unbind(0)[0] if each.dim() > 1 else each,
    "interleave": lambda each: _interleaved(each) if each.shape[-1] % 2 == 0 else each,
    "clone": lambda each: each.clone().detach(),
}


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3),
       st.lists(st.sampled_from(sorted(MOVES)), min_size=1, max_size=6))
def test_moves_are_torchs_own(shape: list[int], names: list[str]) -> None:
    expected = torch.arange(prod(shape)).reshape(shape)
    tensor: torch.Tensor = located(Numbers(tuple(shape)), torch.int64)
    for name in names:
        if not expected.numel() or not expected.dim() or expected.numel() > 2000:
            break
        tensor, expected = MOVES[name](tensor), MOVES[name](expected)
        assert isinstance(tensor, Located) and tensor.shape == expected.shape
    assert isinstance(tensor, Located)
    assert torch.equal(values(tensor), expected)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_cut_and_broken_pieces_hold_the_same_values(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    tensor = located(Numbers(tuple(shape)), torch.int64)
    expected = torch.arange(prod(shape)).reshape(shape)
    if len(shape) > 1:
        tensor, expected = tensor.transpose(0, 1), expected.transpose(0, 1)  # type: ignore[assignment]
    cut = {}
    for axis, extent in enumerate(expected.shape):
        bounds = data.draw(st.lists(st.tuples(st.integers(0, extent), st.integers(0, extent)), min_size=1, max_size=2))
        cut[axis] = tuple((min(pair), max(pair)) for pair in bounds)
    shape_left = pieces.shape_of(expected.shape, cut)
    for axis, kept in cut.items():
        expected = torch.cat([expected.narrow(axis, first, last - first) for first, last in kept], axis)
    assert shape_left == tuple(expected.shape)
    limit = data.draw(st.integers(1, 20))
    small = [part for piece in pieces.cut(tensor.pieces, cut) if prod(piece.size)
             for part in pieces.broken(piece, limit)]
    assert all(part.span <= limit for part in small)
    assert torch.equal(values(Located(small, shape_left, torch.int64)), expected)


def test_what_does_more_than_moving_is_told() -> None:
    tensor = located(Numbers((4, 4)), torch.float32)
    for change in (lambda: tensor + 1, lambda: tensor @ tensor, lambda: tensor.to(torch.bfloat16),
                   lambda: torch.cat([tensor, torch.ones(4, 4)])):
        with pytest.raises(NotMovedError):
            change()


def test_ranges_that_are_not_in_the_tensor_are_refused() -> None:
    for cut in ({2: ((0, 1),)}, {0: ((0, 5),)}, {1: ((3, 2),)}, {-1: ((0, 1),)}):
        with pytest.raises(ValueError, match="are not in"):
            pieces.shape_of((4, 4), cut)
