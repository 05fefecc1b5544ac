"""Where each value of a tensor lies: boxes of it, each with its source, first element there and strides.

Moving values about (cutting, stacking, transposing, splitting axes) only changes the boxes. Axes are counted from 0;
numbers are elements, not bytes. Without torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

Shape = tuple[int, ...]


class Piece(NamedTuple):
    """A box of a tensor that lies evenly in one source."""

    at: Shape
    """First index of the box along each axis."""
    size: Shape
    """Its extent along each axis."""
    source: Any
    """Where its values are; has a `shape`."""
    start: int
    """Element of the source, counted row by row, that is the box's first."""
    strides: Shape
    """Elements of the source from one to the next, along each axis."""

    @property
    def span(self) -> int:
        """Elements of the source from its first to its last."""
        return 1 + sum((extent - 1) * stride for extent, stride in zip(self.size, self.strides, strict=True))


class NotEvenError(Exception):
    """A box would not lie evenly in its source any more."""


def whole(source: Any) -> tuple[Piece, ...]:
    """All of a source, as a tensor."""
    shape = tuple(source.shape)
    return (Piece((0,) * len(shape), shape, source, 0, row_strides(shape)),) if prod(shape) else ()


def row_strides(shape: Sequence[int]) -> Shape:
    """Strides of a tensor that lies row by row."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def sliced(pieces: Sequence[Piece], axis: int, first: int, last: int, step: int = 1) -> tuple[Piece, ...]:
    """Every `step`-th of the indices from `first` up to, not including, `last` along an axis."""
    made = []
    for piece in pieces:
        begin, end = piece.at[axis], min(last, piece.at[axis] + piece.size[axis])
        index = first if begin <= first else first + -(-(begin - first) // step) * step
        if index < end:
            made.append(_changed(piece, axis, (index - first) // step, -(-(end - index) // step),
                                 piece.start + (index - begin) * piece.strides[axis], piece.strides[axis] * step))
    return tuple(made)


def _changed(piece: Piece, axis: int, at: int, size: int, start: int, stride: int) -> Piece:
    return Piece(_put(piece.at, axis, at), _put(piece.size, axis, size), piece.source, start,
                 _put(piece.strides, axis, stride))


def _put(values: Shape, axis: int, *new: int) -> Shape:
    return (*values[:axis], *new, *values[axis + 1:])


def moved(pieces: Sequence[Piece], axis: int, by: int) -> tuple[Piece, ...]:
    """The same boxes further along an axis."""
    return tuple(piece._replace(at=_put(piece.at, axis, piece.at[axis] + by)) for piece in pieces)


def permuted(pieces: Sequence[Piece], order: Sequence[int]) -> tuple[Piece, ...]:
    """Axes in another order."""
    def turn(values: Shape) -> Shape:
        return tuple(values[axis] for axis in order)

    return tuple(Piece(turn(piece.at), turn(piece.size), piece.source, piece.start, turn(piece.strides))
                 for piece in pieces)


def with_axis(pieces: Sequence[Piece], axis: int) -> tuple[Piece, ...]:
    """A new axis of one index in front of `axis`."""
    def widen(values: Shape, new: int) -> Shape:
        return (*values[:axis], new, *values[axis:])

    return tuple(Piece(widen(piece.at, 0), widen(piece.size, 1), piece.source, piece.start, widen(piece.strides, 0))
                 for piece in pieces)


def without_axis(pieces: Sequence[Piece], axis: int) -> tuple[Piece, ...]:
    """Without an axis of one index."""
    return tuple(Piece(_put(piece.at, axis), _put(piece.size, axis), piece.source, piece.start,
                       _put(piece.strides, axis)) for piece in pieces)


def reshaped(pieces: Sequence[Piece], old: Shape, new: Shape) -> tuple[Piece, ...]:
    """The same values, row by row, in another shape. Raises NotEvenError where a box would be broken unevenly."""
    for first, last, extents in reversed(list(_groups(old, new))):
        if first == last:
            for _ in extents:
                pieces = with_axis(pieces, first)
            continue
        if last - first > 1:
            pieces = _joined(pieces, first, old[first:last])
        if extents != (prod(old[first:last]),):
            pieces = tuple(part for piece in pieces for part in _split(piece, first, extents))
    return tuple(pieces)


def _groups(old: Shape, new: Shape) -> Iterator[tuple[int, int, Shape]]:
    """(first, last, extents): old axes that become axes of these extents, in the fewest axes at a time."""
    left = right = 0
    while left < len(old) or right < len(new):
        first, begin, before, after = left, right, 1, 1
        if left < len(old):
            before, left = old[left], left + 1
        if right < len(new):
            after, right = new[right], right + 1
        while before != after:
            if before < after and left < len(old):
                before, left = before * old[left], left + 1
            elif right < len(new):
                after, right = after * new[right], right + 1
            else:
                raise NotEvenError
        yield first, left, new[begin:right]


def _joined(pieces: Sequence[Piece], first: int, extents: Shape) -> tuple[Piece, ...]:
    """Neighbouring axes from `first` as one."""
    while len(extents) > 1:
        axis = first + len(extents) - 2
        pieces = tuple(part for piece in pieces for part in _join(piece, axis, extents[-1]))
        extents = (*extents[:-2], extents[-2] * extents[-1])
    return tuple(pieces)


def _join(piece: Piece, axis: int, extent: int) -> Iterator[Piece]:
    """Axes `axis` and the next, of `extent`, as one; a box that does not stay one becomes several."""
    (at, below), (size, inner) = piece.at[axis:axis + 2], piece.size[axis:axis + 2]
    outer_stride, stride = piece.strides[axis:axis + 2]

    def one(at: int, size: int, start: int, stride: int) -> Piece:
        def put(values: Shape, new: int) -> Shape:
            return (*values[:axis], new, *values[axis + 2:])

        return Piece(put(piece.at, at), put(piece.size, size), piece.source, start, put(piece.strides, stride))

    if size == 1:
        yield one(at * extent + below, inner, piece.start, stride)
    elif inner == extent and (extent == 1 or outer_stride == stride * extent):
        yield one(at * extent, size * extent, piece.start, stride if extent > 1 else outer_stride)
    else:
        for index in range(size):
            yield one((at + index) * extent + below, inner, piece.start + index * outer_stride, stride)


def _split(piece: Piece, axis: int, extents: Shape) -> Iterator[Piece]:
    """One axis as several of these extents."""
    if not extents:
        yield from without_axis((piece,), axis)
        return
    if len(extents) == 1:
        yield piece
        return
    inner = prod(extents[1:])
    at, size, stride = piece.at[axis], piece.size[axis], piece.strides[axis]
    for first, last, begin, end in _rows(at, at + size, inner):
        part = Piece(_put(piece.at, axis, first, begin), _put(piece.size, axis, last - first, end - begin),
                     piece.source, piece.start + (first * inner + begin - at) * stride,
                     _put(piece.strides, axis, stride * inner, stride))
        yield from _split(part, axis + 1, extents[1:])


def _rows(first: int, last: int, width: int) -> Iterator[tuple[int, int, int, int]]:
    """(first row, last row, first column, last column) of the boxes that the indices make in rows of a width."""
    row, end = first // width, last // width
    if first % width or row == end:
        stop = min(last, (row + 1) * width)
        yield row, row + 1, first - row * width, stop - row * width
        row += 1
    if row < end:
        yield row, end, 0, width
    if last % width and row <= end:
        yield end, end + 1, 0, last - end * width


def cut(pieces: Sequence[Piece], ranges: dict[int, tuple[tuple[int, int], ...]]) -> tuple[Piece, ...]:
    """What is left when along each axis only the given ranges are kept, one behind the other."""
    for axis, kept in ranges.items():
        parts: list[Piece] = []
        at = 0
        for first, last in kept:
            parts += moved(sliced(pieces, axis, first, last), axis, at)
            at += last - first
        pieces = parts
    return tuple(pieces)


def shape_of(shape: Sequence[int], ranges: dict[int, tuple[tuple[int, int], ...]]) -> Shape:
    """Shape after `cut`. Raises ValueError for ranges that are not in the tensor."""
    made = list(shape)
    for axis, kept in ranges.items():
        if not 0 <= axis < len(made) or any(not 0 <= first <= last <= shape[axis] for first, last in kept):
            raise ValueError(f"ranges {kept} of axis {axis} are not in {list(shape)}")
        made[axis] = sum(last - first for first, last in kept)
    return tuple(made)


def broken(piece: Piece, limit: int) -> Iterator[Piece]:
    """Boxes of it that each span at most `limit` elements of the source, in the source's order; one element at least.
    """
    if piece.span <= limit:
        yield piece
        return
    axis = max(range(len(piece.size)), key=lambda each: (piece.size[each] > 1, piece.strides[each]))
    rest = piece.span - (piece.size[axis] - 1) * piece.strides[axis]
    count = max(1, (limit - rest) // piece.strides[axis] + 1)
    for first in range(0, piece.size[axis], count):
        part = _changed(piece, axis, piece.at[axis] + first, min(count, piece.size[axis] - first),
                        piece.start + first * piece.strides[axis], piece.strides[axis])
        yield from broken(part, limit)
