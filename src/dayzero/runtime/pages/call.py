"""One call of the model for several sequences: where new tokens go, where the past comes from, positions and mask.

The rows of a batch end together: shorter pasts have padding on the left, as the library's own generation has. What lies
at padding is some token of the same row: numbers, which the mask keeps from being seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .frames import Frames
from .kinds import ALL, Group
from .step import Row
from .table import Numbers, Table


@dataclass(frozen=True)
class Lines:
    """How the tokens of a tensor lie in this rank's memory. Tensors for which it is equal share their places."""

    group: int
    tokens: int
    """Of a block."""
    in_chunk: int
    """Rows in the length of a chunk."""


@dataclass(frozen=True)
class Span:
    """What tensors of a kind read and write in a call."""

    width: int
    """Tokens that attention sees in a row, padding included; the new ones are last."""
    written: torch.Tensor
    """Rows of the new tokens, sequence after sequence."""
    read: torch.Tensor | None
    """Rows of all tokens, sequence after sequence."""
    run: int = 0
    """Row of the first token where all lie one behind the other: `read` is None then."""
    views: dict[Any, Any] = field(default_factory=dict)
    """What layers that are alike work out once for all of them."""

    def before(self, new: int, batch: int) -> Span:
        """Without the new tokens."""
        read = None if self.read is None else self.read.view(batch, -1)[:, :-new].reshape(-1)
        return Span(self.width - new, self.written, read, self.run)


@dataclass(frozen=True)
class Call:
    """A batch."""

    rows: tuple[Row, ...]
    past: int
    """Computed tokens of the longest row."""
    input_ids: torch.Tensor
    position_ids: torch.Tensor
    mask: torch.Tensor | None
    """1 for tokens, 0 for padding; None when no row is padded."""
    spans: dict[Lines, Span] = field(default_factory=dict)

    @property
    def new(self) -> int:
        """Tokens that each row computes."""
        return len(self.rows[0].tokens)

    @property
    def fresh(self) -> bool:
        """Whether the rows have no past."""
        return self.past == 0

    def width(self, window: int) -> int:
        """Tokens that attention sees in a row."""
        return _width(window, self.past, self.new)


def prepare(rows: Sequence[Row], tables: Sequence[Mapping[Group, Table]], groups: Sequence[Group],
            lines: Sequence[Lines], frames: Frames, device: torch.device) -> Call:
    """The call for rows that compute equally many tokens. `lines`: those for which places are wanted."""
    starts = [row.start for row in rows]
    past = max(starts)
    ids = np.array([row.tokens for row in rows], np.int64)
    positions = np.array(starts, np.int64)[:, None] + np.arange(ids.shape[1])
    mask = None
    if min(starts) != past:
        columns = np.arange(past + ids.shape[1])
        mask = _tensor((columns >= past - positions[:, :1]).astype(np.int64), device)
    spans = {each: _span(rows, [table[groups[each.group]] for table in tables], groups[each.group], each, past,
                         frames, device) for each in lines}
    return Call(tuple(rows), past, _tensor(ids, device), _tensor(positions, device), mask, spans)


def _width(window: int, past: int, new: int) -> int:
    return (past if window == ALL else min(past, window - 1)) + new


def _span(rows: Sequence[Row], tables: Sequence[Table], group: Group, lines: Lines, past: int, frames: Frames,
          device: torch.device) -> Span:
    new, size = len(rows[0].tokens), lines.tokens
    firsts = frames.rows(lines.group, size, lines.in_chunk)
    width = _width(group.window or ALL, past, new)
    if len(rows) == 1:
        end = rows[0].start + new
        if (run := tables[0].run(end - width, end, size, firsts)) is not None:
            written = np.arange(run + width - new, run + width)
            return Span(width, _tensor(written, device), None, run)
    read: Numbers = np.empty((len(rows), width), np.int64)
    for line, table, row in zip(read, tables, rows, strict=True):
        end = row.start + new
        first = max(0, end - width)
        places = table.places(first, end, size, firsts)
        line[width - (end - first):] = places
        line[:width - (end - first)] = places[0]
    return Span(width, _tensor(read[:, width - new:], device).view(-1), _tensor(read.reshape(-1), device))


def _tensor(values: Numbers, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
