"""Arithmetic of shapes of which one dimension is dealt out to ranks.

A dimension is a row of segments; every rank holds an equal part of each. One segment is an ordinary cut; two are a
fused gate and up projection; and where a batch of 3 and 8 heads are merged into one dimension of 24, of which each rank
holds its heads, those are three segments of 8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Segments = tuple[int, ...]


def even(segments: Segments, ranks: int) -> bool:
    """Whether every segment can be dealt out."""
    return all(size % ranks == 0 for size in segments)


def ranges(segments: Segments, ranks: int, rank: int) -> tuple[tuple[int, int], ...]:
    """What a rank holds of the dimension."""
    made, first = [], 0
    for size in segments:
        part = size // ranks
        made.append((first + rank * part, first + (rank + 1) * part))
        first += size
    return tuple(made)


def resolved(shape: Sequence[int], elements: int) -> tuple[int, ...]:
    """The shape with its -1 filled in."""
    known = math.prod(size for size in shape if size != -1)
    return tuple(elements // known if size == -1 else int(size) for size in shape)


def regrouped(old: Sequence[int], new: Sequence[int], dim: int, segments: Segments, ranks: int
              ) -> tuple[int, Segments] | None:
    """Where dimension `dim` of a view goes: (dimension of the new shape, its segments); None when no single dimension
    of it is dealt out then."""
    if 0 in old:
        return None
    before, group_new = _group(old, new, dim)
    if group_new is None:
        return None
    outer, inner = before
    flat = tuple(size * inner for size in segments) * outer
    for place, size in group_new:
        left = math.prod(each for at, each in group_new if at < place)
        right = math.prod(each for at, each in group_new if at > place)
        if size > 1 and (found := _pattern(flat, left, right, size, ranks)):
            return place, found
    return None


def _pattern(flat: Segments, left: int, right: int, size: int, ranks: int) -> Segments | None:
    """The segments of a dimension of `size` of which `left` copies, each of `right` elements, make up `flat`."""
    if len(flat) % left:
        return None
    length = len(flat) // left
    first = flat[:length]
    if first * left != flat or sum(first) != size * right:
        return None
    if any(each % (right * ranks) for each in first):
        return None
    return tuple(each // right for each in first)


def _group(old: Sequence[int], new: Sequence[int], dim: int
           ) -> tuple[tuple[int, int], list[tuple[int, int]] | None]:
    """((elements before, after `dim` in the smallest run of old dimensions that has a run of new ones of the same
    size), that run of new ones as (place, size))."""
    i = j = 0
    while i < len(old):
        start_i, start_j = i, j
        size_old, size_new = old[i], new[j] if j < len(new) else 1
        i, j = i + 1, j + 1
        while size_old != size_new:
            if size_old < size_new:
                if i >= len(old):
                    return (1, 1), None
                size_old, i = size_old * old[i], i + 1
            else:
                if j >= len(new):
                    return (1, 1), None
                size_new, j = size_new * new[j], j + 1
        if start_i <= dim < i:
            outer, inner = math.prod(old[start_i:dim]), math.prod(old[dim + 1:i])
            while j < len(new) and new[j] == 1:
                j += 1
            return (outer, inner), [(place, new[place]) for place in range(start_j, min(j, len(new)))]
    return (1, 1), None


def borders(segments: Segments) -> list[int]:
    """First element of each segment, and the end."""
    made = [0]
    for size in segments:
        made.append(made[-1] + size)
    return made


def between(segments: Segments, first: int, last: int) -> tuple[int, int] | None:
    """Numbers of the segments from `first` to before `last` that lie exactly there; None when a border is inside
    one."""
    edges = borders(segments)
    if first not in edges or last not in edges:
        return None
    return edges.index(first), edges.index(last)
