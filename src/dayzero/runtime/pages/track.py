"""One tensor of one layer in blocks: written at places, read as the batch that attention wants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dayzero.runtime.sharding import like, local

from .call import Lines, Span
from .table import Numbers

View = tuple[list[int], list[int], int]
"""Sizes, strides and first element."""


class Scratch:
    """Memory that one layer's batch is put together in, and then the next layer's: only one is read at a time."""

    def __init__(self) -> None:
        self._held: dict[tuple[torch.dtype, torch.device, str], torch.Tensor] = {}

    def get(self, rows: int, columns: int, like: torch.Tensor, use: str) -> torch.Tensor:
        """[rows, columns], with any content."""
        key, need = (like.dtype, like.device, use), rows * columns
        held = self._held.get(key)
        if held is None or held.numel() < need:
            held = self._held[key] = like.new_empty(need + need // 4)
        return held[:need].view(rows, columns)


class Track:
    """Keys and values (or another part that grows by token) of one layer. `dimension`: where a part has its tokens."""

    lines: Lines
    """Where its tokens are."""

    def __init__(self, use: str, dimension: int, scratch: Scratch | None) -> None:
        self.use, self.dimension, self.scratch = use, dimension, scratch
        self._layout: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...] = ()
        """Of each part, without batch and tokens: sizes, strides, first element within a token."""
        self._columns = 0
        self.pool: torch.Tensor | None = None
        """[tokens of all blocks, elements of a token]."""
        self._first = 0

    @property
    def token_bytes(self) -> int:
        """What one token takes; 0 before the first update."""
        return 0 if self.pool is None else self.pool.shape[1] * self.pool.element_size()

    def update(self, parts: Sequence[torch.Tensor], span: Span, tokens: int) -> tuple[torch.Tensor, ...]:
        """Keep the new tokens, give past and new ones: parts [batch, ..., tokens, ...] with the kind of those that
        came (of a distributed one the rank's part is kept). `tokens`: places of a pool that is made now."""
        self.write(parts, span, tokens)
        found = self.read(span, parts[0].shape[0])
        if type(parts[0]) is torch.Tensor:
            return tuple(found)
        return tuple(like(kept, part) for part, kept in zip(parts, found, strict=True))

    def write(self, parts: Sequence[torch.Tensor], span: Span, tokens: int) -> None:
        """Keep the new tokens."""
        plain = type(parts[0]) is torch.Tensor
        lines = [self._lines(part if plain else local(part)) for part in parts]
        if self.pool is None:
            self._lay_out([local(part).movedim(self.dimension, 1).shape[2:] for part in parts])
            self.place(lines[0].new_zeros(tokens, sum(line.shape[1] for line in lines)))
        assert self.pool is not None
        if span.kept is not None:
            lines = [line.index_select(0, span.kept) for line in lines]
        if span.read is None:
            new = len(lines[0])
            torch.cat(lines, 1, out=self.pool.narrow(0, span.run + span.width - new, new))
        else:
            self.pool.index_copy_(0, span.written, lines[0] if len(lines) == 1 else torch.cat(lines, 1))

    def place(self, pool: torch.Tensor) -> None:
        """Tokens are kept there: [tokens of all blocks, elements of a token]."""
        self.pool, self._first = pool, int(pool.storage_offset())

    def _lines(self, part: torch.Tensor) -> torch.Tensor:
        """[tokens of all rows, elements of a token]."""
        if part.shape[self.dimension] == 1:
            return part.reshape(part.shape[0], -1)
        rows = part.movedim(self.dimension, 1)
        return rows.reshape(rows.shape[0] * rows.shape[1], -1)

    def _lay_out(self, shapes: Sequence[torch.Size]) -> None:
        at = 0
        for shape in shapes:
            strides = tuple(shape[index + 1:].numel() for index in range(len(shape)))
            self._layout += ((tuple(shape), strides, at),)
            at += shape.numel()
        self._columns = at

    def read(self, span: Span, batch: int) -> list[torch.Tensor]:
        """Each part's tokens of a batch, as views of the pool where they lie one behind the other."""
        assert self.pool is not None
        lines, origin = (self.pool, self._first) if span.read is None else (self._gathered(span.read), 0)
        key = (self.dimension, self._layout)
        views = span.views.get(key)
        if views is None:
            views = span.views[key] = self._views(span, batch)
        return [lines.as_strided(sizes, steps, origin + first) for sizes, steps, first in views]

    def _views(self, span: Span, batch: int) -> list[View]:
        columns, width, views = self._columns, span.width, []
        for shape, strides, offset in self._layout:
            sizes, steps = [batch, *shape], [width * columns, *strides]
            sizes.insert(self.dimension, width)
            steps.insert(self.dimension, columns)
            views.append((sizes, steps, offset + (span.run * columns if span.read is None else 0)))
        return views

    def _gathered(self, places: torch.Tensor) -> torch.Tensor:
        assert self.pool is not None
        if self.scratch is None:
            return self.pool.index_select(0, places)
        found = self.scratch.get(len(places), self.pool.shape[1], self.pool, self.use)
        return torch.index_select(self.pool, 0, places, out=found)

    def move(self, sources: Sequence[int], targets: Sequence[int], holds: int) -> None:
        """Content of blocks, by their slots, of which a chunk has `holds`, into others."""
        if self.pool is not None:
            rows = [torch.from_numpy(self._rows(each, holds)).to(self.pool.device) for each in (sources, targets)]
            self.pool.index_copy_(0, rows[1], self.pool.index_select(0, rows[0]))

    def _rows(self, slots: Sequence[int], holds: int) -> Numbers:
        at, size = np.array(slots, np.int64), self.lines.tokens
        firsts = at // holds * self.lines.in_chunk + at % holds * size
        return (firsts[:, None] + np.arange(size)).reshape(-1)
