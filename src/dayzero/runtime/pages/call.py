"""One call of the model for several sequences: where new tokens go, where the past comes from, positions and mask.

The rows of a batch end together: shorter ones have padding on the left, as the library's own generation has. What lies
at padding is some token of the same row: numbers, which the mask keeps from being seen. A row that computes fewer
tokens than others computes some in front of its own as well, of which nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
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
    """Rows of the new tokens that are kept, sequence after sequence."""
    read: torch.Tensor | None
    """Rows of all tokens, sequence after sequence."""
    run: int = 0
    """Row of the first token where all lie one behind the other: `read` is None then."""
    kept: torch.Tensor | None = None
    """Which of the new tokens, sequence after sequence; None: all of them."""
    views: dict[Any, Any] = field(default_factory=dict)
    """What layers that are alike work out once for all of them."""

    def before(self, new: int, batch: int) -> Span:
        """Without the new tokens."""
        read = None if self.read is None else self.read.view(batch, -1)[:, :-new].reshape(-1)
        return Span(self.width - new, self.written, read, self.run, self.kept)


@dataclass(frozen=True)
class Call:
    """A batch."""

    rows: tuple[Row, ...]
    past: int
    """Tokens of the longest row before the `new` ones."""
    new: int
    """Tokens that each row computes."""
    input_ids: torch.Tensor
    position_ids: torch.Tensor
    mask: torch.Tensor | None
    """1 for tokens, 0 for padding; None when no row is padded."""
    spans: dict[Lines, Span] = field(default_factory=dict)

    @property
    def fresh(self) -> bool:
        """Whether the rows have no past."""
        return self.past == 0

    def width(self, window: int) -> int:
        """Tokens that attention sees in a row."""
        return _width(window, self.past, self.new)


def prepare(rows: Sequence[Row], tables: Sequence[Mapping[Group, Table]], groups: Sequence[Group],
            lines: Sequence[Lines], frames: Frames, device: torch.device) -> Call:
    """The call for some rows. `lines`: those for which places are wanted."""
    counts, ends = [len(row.tokens) for row in rows], np.array([row.end for row in rows], np.int64)[:, None]
    longest, new = int(ends.max()), max(counts)
    past = longest - new
    ids = np.array([(row.tokens[0],) * (new - len(row.tokens)) + row.tokens for row in rows], np.int64)
    positions = np.maximum(ends - new + np.arange(new), 0)
    mask = None if int(ends.min()) == longest else _tensor(
        (np.arange(longest) >= longest - ends).astype(np.int64), device)
    own = None if min(counts) == new else (np.arange(new) >= new - np.array(counts)[:, None]).reshape(-1)
    spans = {each: _span(rows, [table[groups[each.group]] for table in tables], groups[each.group], each, past, own,
                         frames, device) for each in lines}
    return Call(tuple(rows), past, new, _tensor(ids, device), _tensor(positions, device), mask, spans)


def _width(window: int, past: int, new: int) -> int:
    return (past if window == ALL else min(past, window - 1)) + new


def _span(rows: Sequence[Row], tables: Sequence[Table], group: Group, lines: Lines, past: int,
          own: npt.NDArray[np.bool_] | None, frames: Frames, device: torch.device) -> Span:
    """`own`: which of the new tokens are kept; None: all."""
    new, size = max(len(row.tokens) for row in rows), lines.tokens
    firsts = frames.rows(lines.group, size, lines.in_chunk)
    width = _width(group.window or ALL, past, new)
    if len(rows) == 1:
        end = rows[0].end
        if (run := tables[0].run(end - width, end, size, firsts)) is not None:
            written = np.arange(run + width - new, run + width)
            return Span(width, _tensor(written, device), None, run)
    read: Numbers = np.empty((len(rows), width), np.int64)
    for line, table, row in zip(read, tables, rows, strict=True):
        first = max(0, row.end - width, row.start - (group.window - 1) if group.window else 0)
        places = table.places(first, row.end, size, firsts)
        line[width - len(places):] = places
        line[:width - len(places)] = places[0]
    written = read[:, width - new:].reshape(-1)
    if own is None:
        return Span(width, _tensor(written, device), _tensor(read.reshape(-1), device))
    return Span(width, _tensor(written[own], device), _tensor(read.reshape(-1), device),
                kept=_tensor(np.flatnonzero(own), device))


def _tensor(values: npt.NDArray[np.int64], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
