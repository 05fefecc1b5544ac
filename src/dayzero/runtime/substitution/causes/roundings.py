"""What a matrix may be instead: its values rounded to few levels, as those of quantised releases are.

What formats have in common is tried, and not a list of their names: bits, values that share a scale, how the scale is
chosen, and in which precisions scale and product are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import nn

Block = tuple[int, int]
"""Rows and columns that share a scale; 0: all of them."""
_BLOCKS: tuple[Block, ...] = ((1, 32), (1, 64), (1, 128), (1, 16), (1, 256), (1, 0), (0, 0), (128, 128))
_INTEGERS, _FLOATS = (4, 8, 5, 6, 3, 2), ("e4m3", "e2m1", "e5m2")
_RULES = ("extreme", "largest", "middle", "range")
_TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0}
"""OCP 8-bit floating point, and Microscaling Formats 1.0."""
_TINY = 1e-30


@dataclass(frozen=True)
class Rounding:
    """One way."""

    levels: str
    """Bits of integers, or a floating-point format."""
    rule: str
    """What the scale makes of a block. extreme: its largest magnitude is the lowest level; largest: it is the highest;
    middle: half a level above the highest; range: levels from its smallest to its largest value; power: of floats, a
    power of two."""
    block: Block
    scale: str = "f32"
    """Precision of scales."""
    first: bool = False
    """Whether values are divided by the scale as it is kept."""
    stored: str = "f32"
    """Precision of the product."""
    halves: str = "even"
    """Where values half-way between levels go: to the even one, up, or away from zero."""

    @property
    def told(self) -> str:
        """`4 bits in blocks of 32`"""
        levels = f"{self.levels} bits" if self.levels.isdigit() else f"floating point ({self.levels})"
        rows, columns = self.block
        if not columns:
            return f"{levels} with {'a scale for each row' if rows else 'one scale'}"
        return f"{levels} in blocks of {f'{rows} x {columns}' if rows > 1 else columns}"

    @property
    def by_rows(self) -> bool:
        """Whether no scale is shared by rows."""
        return self.block[0] == 1

    def of(self, weight: torch.Tensor) -> torch.Tensor:
        """[..., rows, columns], rounded, in its dtype."""
        out, size = weight.shape[-2:]
        rows, columns = self.block[0] or out, self.block[1] or size
        values = nn.functional.pad(weight.float(), (0, -size % columns, 0, -out % rows))
        blocks = torch.unflatten(torch.unflatten(values, -1, (-1, columns)), -3, (-1, rows)).movedim(-2, -3)
        made = self._rounded(blocks, blocks.amin((-2, -1), keepdim=True), blocks.amax((-2, -1), keepdim=True))
        whole = made.movedim(-3, -2).flatten(-4, -3).flatten(-2, -1)[..., :out, :size]
        return whole.to(_TYPES[self.stored]).to(weight.dtype)

    def _rounded(self, x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        most = torch.maximum(high, -low)
        if not self.levels.isdigit():
            return self._floats(x, most)
        half = 2 ** (int(self.levels) - 1)
        if self.rule == "range":
            scale, kept = self._scale((high - low) / (2 * half - 1))
            return self._whole((x - low) / scale).clamp(0, 2 * half - 1) * kept + low.to(_TYPES[self.scale]).float()
        flat = x.flatten(-2)
        count = flat.shape[-1]  # of several extreme values the first counts
        at = torch.where(flat.abs() == most.flatten(-2), torch.arange(count), count - 1).amin(-1, keepdim=True)
        extreme = flat.gather(-1, at).unsqueeze(-1)
        scale, kept = self._scale({"extreme": extreme / -half, "largest": most / (half - 1),
                                   "middle": most / (half - 0.5)}[self.rule])
        return self._whole(x / scale).clamp(-half, half - 1) * kept

    def _whole(self, x: torch.Tensor) -> torch.Tensor:
        if self.halves == "even":
            return x.round()
        return (x + 0.5).floor() if self.halves == "up" else x.sign() * (x.abs() + 0.5).floor()

    def _floats(self, x: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
        largest = _LARGEST[self.levels]
        if self.rule == "power":
            scale = torch.exp2(torch.floor(torch.log2(most.clamp(min=_TINY))) - torch.tensor(largest).log2().floor())
            kept = scale
        else:
            scale, kept = self._scale(most / largest)
        return _cast((x / scale).clamp(-largest, largest), self.levels) * kept

    def _scale(self, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(what values are divided by, what levels are multiplied with)"""
        scale = torch.where(scale.abs() < _TINY, torch.ones_like(scale), scale)
        kept = scale.to(_TYPES[self.scale]).float()
        return (kept if self.first else scale), kept


def _cast(values: torch.Tensor, name: str) -> torch.Tensor:
    if name == "e2m1":
        size = values.abs()
        step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
        return values.sign() * ((size / step).round() * step)
    return values.to(torch.float8_e4m3fn if name == "e4m3" else torch.float8_e5m2).float()


def roundings() -> Iterator[Rounding]:
    """All that are tried, the usual ones first."""
    for block, levels, rule in product(_BLOCKS, map(str, _INTEGERS), _RULES):
        yield Rounding(levels, rule, block)
    for block, levels, rule in product(_BLOCKS, _FLOATS, ("largest", "power")):
        yield Rounding(levels, rule, block)


def kinds_of(found: Rounding) -> Iterator[Rounding]:
    """The same levels with scales and products in every precision, and halves rounded otherwise."""
    modes = ("even", "up", "away") if found.levels.isdigit() else ("even",)
    for halves, scale, first, stored in product(modes, _TYPES, (False, True), _TYPES):
        if scale != "f32" or not first:
            yield Rounding(found.levels, found.rule, found.block, scale, first, stored, halves)
