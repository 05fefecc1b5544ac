"""Quantised matrices: which of their bytes a part needs (`Quantised`), and the values of a part that is in memory as it
is stored (`Block`). Needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch

from .codes import FP4, Packing, centred, fields, numbers, paired
from .files import Files, Stored
from .pieces import Piece
from .sources import items, width

Range = tuple[int, int]
"""From the first up to, not including, the last."""
_PAIR = 2


@dataclass(frozen=True, eq=False)
class Quantised:
    """A matrix in units of scales. The values are fp32: the product of both, rounded once. Rows and columns are those
    of the file: where `turned`, a row belongs to an input and a column to an output."""

    weight: Stored
    scale: Stored
    kind: str
    """float8, int8, fp4 (pairs, the first in the low half) or words (of integers)."""
    shape: tuple[int, ...]
    blocks: tuple[int, int]
    """Rows and columns that share a scale."""
    scales: tuple[int, int]
    """Rows of scales for each matrix, and their columns."""
    overall: tuple[tuple[Stored, bool], ...] = ()
    """Scales of the whole matrix, and whether they divide."""
    packing: Packing | None = None
    """Of words; without `zeros`, half of their range is the zero."""
    zeros: Stored | None = None
    """Zero points of words, one for each scale."""
    zero_packing: Packing | None = None
    """How those are packed."""
    zero_less: int = 0
    """What zero points are stored less by."""
    groups: Stored | None = None
    """Where groups are no neighbours: for each input its group."""
    turned: bool = False

    @property
    def name(self) -> str:
        return self.weight.name

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def place(self) -> tuple[int, int]:
        return self.weight.file, self.weight.start

    @property
    def stored(self) -> float:
        parts = [self.weight, self.scale, *(each for each in (self.zeros, self.groups) if each),
                 *(each for each, _ in self.overall)]
        return sum(each.length for each in parts) / max(1, prod(self.shape))

    def values(self, files: Files, piece: Piece) -> torch.Tensor:
        rows, columns = self.box(piece)
        return self.placed(self.block(files, rows, columns).values(rows, columns), piece, columns)

    def box(self, piece: Piece) -> tuple[Range, Range]:
        """Rows and columns that a piece lies in."""
        wide = width(self.shape)
        first, last = divmod(piece.start, wide), divmod(piece.start + piece.span - 1, wide)
        along = [stride for extent, stride in zip(piece.size, piece.strides, strict=True) if extent > 1]
        if all(stride % wide == 0 or stride < wide for stride in along) and first[1] <= last[1]:
            return (first[0], last[0] + 1), (first[1], last[1] + 1)
        return (first[0], last[0] + 1), (0, wide)

    def placed(self, values: torch.Tensor, piece: Piece, columns: Range) -> torch.Tensor:
        """The values of a piece in its size, of those of its box."""
        wide, line = width(self.shape), columns[1] - columns[0]
        strides = [stride // wide * line + stride % wide for stride in piece.strides]
        return torch.as_strided(values, piece.size, strides, values.storage_offset() + piece.start % wide - columns[0])

    def block(self, files: Files, rows: Range, columns: Range) -> Block:
        """Rows and columns as they are stored."""
        weight = self.weight._replace(dtype="U8") if self.kind == "fp4" else self.weight
        down, across = self._spans(rows, columns)
        stored = _part(files, weight, self._items(), down, across)
        groups = None
        if self.groups is not None:
            own = rows if self.turned else (0, width(self.shape))
            groups = items(files, self.groups, *own)
            groups = None if len(groups) and int(groups[0]) < 0 else groups
        scaled = self.scale_rows(rows, groups), self.scale_columns(columns, groups)
        zeros = None
        if self.zeros is not None and self.zero_packing is not None:
            across_zeros = self.zero_packing.span(*scaled[self.zero_packing.axis])[:2]
            spans = (across_zeros, scaled[1]) if not self.zero_packing.axis else (scaled[0], across_zeros)
            zeros = _part(files, self.zeros, self.zeros.shape[-1], *spans)
        return Block(self, (down[0], across[0]), stored, (scaled[0][0], scaled[1][0]),
                     _part(files, self.scale, self.scales[1], *scaled), zeros, rows[0], groups,
                     tuple(items(files, each, 0, prod(each.shape)).float() for each, _ in self.overall))

    def _items(self) -> int:
        """Stored items of a row."""
        wide = width(self.shape)
        if self.packing is not None:
            return self.packing.extent(wide) if self.packing.axis else wide
        return -(-wide // _PAIR) if self.kind == "fp4" else wide

    def _spans(self, rows: Range, columns: Range) -> tuple[Range, Range]:
        """Rows and columns of stored items that hold them."""
        if self.packing is not None:
            axis = self.packing.axis
            inner = self.packing.span(*(columns if axis else rows))[:2]
            return (rows, inner) if axis else (inner, columns)
        return rows, (columns[0] // _PAIR, -(-columns[1] // _PAIR)) if self.kind == "fp4" else columns

    def scale_rows(self, rows: Range, groups: torch.Tensor | None) -> Range:
        """Rows of scales that these rows need."""
        if groups is not None and self.turned:
            return int(groups.min()), int(groups.max()) + 1
        return self.scale_row(rows[0]), self.scale_row(rows[1] - 1) + 1

    def scale_row(self, row: int) -> int:
        """The row of scales of a row."""
        height = self.shape[-2] if len(self.shape) > 1 else 1
        if self.scales[0] == 0:  # one for all matrices
            return 0
        return row // height * self.scales[0] + row % height // self.blocks[0]

    def scale_columns(self, columns: Range, groups: torch.Tensor | None) -> Range:
        """Columns of scales likewise."""
        if self.scales[1] == 1 or (groups is not None and not self.turned):
            return 0, self.scales[1]
        return columns[0] // self.blocks[1], -(-columns[1] // self.blocks[1])


def _part(files: Files, tensor: Stored, wide: int, rows: Range, columns: Range) -> torch.Tensor:
    """Rows and columns of stored items, of which a row has `wide`."""
    read = items(files, tensor, rows[0] * wide, rows[1] * wide).view(-1, wide)
    return read if columns == (0, wide) else read[:, columns[0]:columns[1]].contiguous()


@dataclass(frozen=True, eq=False)
class Block:
    """Rows and columns of a quantised matrix, in memory as they are stored. Numbers of rows and columns are always
    those of the whole matrix."""

    of: Quantised
    at: tuple[int, int]
    """First row and column of stored items."""
    weight: torch.Tensor
    scales_at: tuple[int, int]
    scales: torch.Tensor
    zeros: torch.Tensor | None
    groups_at: int
    """First row of `groups`, where they are of rows."""
    groups: torch.Tensor | None
    overall: tuple[torch.Tensor, ...]

    @property
    def nbytes(self) -> int:
        """In memory."""
        tensors = (self.weight, self.scales, self.zeros, self.groups, *self.overall)
        return sum(each.nbytes for each in tensors if each is not None)

    def to(self, device: torch.device) -> Block:
        """The same there."""
        return replace(self, weight=self.weight.to(device), scales=self.scales.to(device),
                       zeros=None if self.zeros is None else self.zeros.to(device),
                       groups=None if self.groups is None else self.groups.to(device),
                       overall=tuple(each.to(device) for each in self.overall))

    def values(self, rows: Range, columns: Range) -> torch.Tensor:
        """Rows and columns of it, fp32."""
        values = self._codes(rows, columns)
        down, across = self._rows(rows), self._columns(columns)
        if self.zeros is not None:
            values = values - self._spread(self._zero_points(down, columns), across)
        scales = self.scales.float() if self.scales.dtype != torch.uint8 else torch.exp2(self.scales.float() - 127)
        scales = scales.index_select(0, down)
        for overall, (_, divides) in zip(self.overall, self.of.overall, strict=True):
            value = self._overall(overall, rows)
            scales = scales / value if divides else scales * value
        return self._scaled(values.contiguous(), scales, columns, across)

    def _codes(self, rows: Range, columns: Range) -> torch.Tensor:
        """fp32, in units of the scales."""
        of, packing = self.of, self.of.packing
        down, across = of._spans(rows, columns)
        stored = self.weight[down[0] - self.at[0]:down[1] - self.at[0], across[0] - self.at[1]:across[1] - self.at[1]]
        if of.kind == "fp4":
            skip = columns[0] - across[0] * _PAIR
            return paired(stored, FP4)[:, skip:skip + columns[1] - columns[0]]
        if packing is None:
            return numbers(stored) if of.kind == "float8" else stored.float()
        skip = packing.span(*(columns if packing.axis else rows))[2]
        made = centred(stored, packing)
        if packing.axis:
            return made[:, skip:skip + columns[1] - columns[0]]
        return made[skip:skip + rows[1] - rows[0]]

    def _rows(self, rows: Range) -> torch.Tensor:
        """For each row that of its scales, among those that are here."""
        if self.groups is not None and self.of.turned:
            return self.groups[rows[0] - self.groups_at:rows[1] - self.groups_at] - self.scales_at[0]
        height = self.of.shape[-2] if len(self.of.shape) > 1 else 1
        row = torch.arange(*rows, device=self.weight.device)
        if self.of.scales[0] == 0:
            return torch.zeros_like(row)
        return row // height * self.of.scales[0] + row % height // self.of.blocks[0] - self.scales_at[0]

    def _columns(self, columns: Range) -> torch.Tensor | None:
        """For each column that of its scales; None where all columns have one."""
        if self.of.scales[1] == 1:
            return None
        if self.groups is not None and not self.of.turned:
            return self.groups[columns[0]:columns[1]]
        return torch.arange(*columns, device=self.weight.device) // self.of.blocks[1] - self.scales_at[1]

    def _zero_points(self, down: torch.Tensor, columns: Range) -> torch.Tensor:
        """[rows, columns of scales], less half of the range as the codes are."""
        assert self.zeros is not None and self.of.zero_packing is not None
        packing = self.of.zero_packing
        made = fields(self.zeros, packing) - (1 << (packing.bits - 1)) + self.of.zero_less
        skip = self.scales_at[packing.axis] % packing.values
        made = made[:, skip:] if packing.axis else made[skip:]
        return made[:, :self.scales.shape[1]].float().index_select(0, down)

    def _overall(self, overall: torch.Tensor, rows: Range) -> torch.Tensor:
        if len(overall) == 1:
            return overall
        return overall[torch.arange(*rows, device=overall.device) // self.of.shape[-2]].unsqueeze(1)

    def _scaled(self, values: torch.Tensor, scales: torch.Tensor, columns: Range, across: torch.Tensor | None
                ) -> torch.Tensor:
        """Values times the scales of their columns, in place."""
        size, (first, last) = self.of.blocks[1], columns
        if across is not None and self.groups is None and not first % size and not last % size:
            each = scales[:, first // size - self.scales_at[1]:last // size - self.scales_at[1]]
            values.view(len(values), -1, size).mul_(each.unsqueeze(-1))
            return values
        return values.mul_(self._spread(scales, across))

    def _spread(self, scales: torch.Tensor, across: torch.Tensor | None) -> torch.Tensor:
        """For each column its scale."""
        return scales if across is None else scales.index_select(1, across)
