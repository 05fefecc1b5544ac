"""Integers and narrow floats as releases store them, as fp32 or integers. Needs torch."""

from __future__ import annotations

from functools import cache
from math import gcd
from typing import NamedTuple

import torch

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The codes of a 4-bit float (OCP MX 1.0, E2M1)."""
INT4 = tuple(float(code - 8) for code in range(16))
"""The codes of a 4-bit integer, stored with 8 added."""
_WORD = 32


class Packing(NamedTuple):
    """How integers lie in words of 32 bits."""

    bits: int
    values: int
    """In so many words."""
    words: int = 1
    axis: int = 1
    """0: the values of a word are one below the other, 1: side by side."""
    order: tuple[int, ...] = ()
    """Place of each value of a word in it, counted from the lowest bits; empty: in their order."""

    def span(self, first: int, last: int) -> tuple[int, int, int]:
        """(first word, end of words, values to skip) that hold the values from the first up to the last."""
        unit = first // self.values
        return unit * self.words, -(-last // self.values) * self.words, first - unit * self.values

    def extent(self, values: int) -> int:
        """Words that hold so many values."""
        return -(-values // self.values) * self.words


def padded(bits: int, axis: int = 1) -> Packing:
    """As many whole values as a word has room for."""
    return Packing(bits, _WORD // bits, axis=axis)


def dense(bits: int, axis: int = 1) -> Packing:
    """Values go on from word to word: 3 bits have 32 values in 3 words."""
    common = gcd(_WORD, bits)
    return Packing(bits, _WORD // common, bits // common, axis)


def fields(words: torch.Tensor, packing: Packing) -> torch.Tensor:
    """The integers, 0 to 2^bits - 1, of words [rows, columns]: int32, along the axis of packing."""
    words = words.int()
    if packing.words > 1:
        made = _stream(words if packing.axis else words.T, packing.bits)
        return made if packing.axis else made.T.contiguous()
    shifts = torch.arange(0, packing.values * packing.bits, packing.bits, dtype=torch.int32, device=words.device)
    mask = (1 << packing.bits) - 1
    if not packing.axis:
        return ((words.unsqueeze(1) >> shifts.unsqueeze(1)) & mask).flatten(0, 1)
    made = (words.unsqueeze(-1) >> shifts) & mask
    if packing.order:
        made = made[..., list(packing.order)]
    return made.flatten(-2)


def centred(words: torch.Tensor, packing: Packing) -> torch.Tensor:
    """fp32 of the integers less half of their range."""
    if packing.values * packing.bits != _WORD or packing.bits != 4 or not packing.axis:
        return (fields(words, packing) - (1 << (packing.bits - 1))).float()
    made = paired(words.contiguous().view(torch.uint8), INT4)
    if not packing.order:
        return made
    order = torch.tensor(packing.order, device=words.device)
    return made.view(-1, packing.values).index_select(1, order).view(made.shape)


def _stream(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Values that go on from word to word, along the last axis."""
    each = (words.unsqueeze(-1) >> torch.arange(_WORD, dtype=torch.int32, device=words.device)) & 1
    worth = 1 << torch.arange(bits, dtype=torch.int32, device=words.device)
    return (each.reshape(len(words), -1, bits) * worth).sum(-1, dtype=torch.int32)


def paired(stored: torch.Tensor, values: tuple[float, ...]) -> torch.Tensor:
    """fp32 of two 4-bit codes in each byte, the first in the low half."""
    both = _pairs(values, stored.device).index_select(0, stored.flatten().int())
    return both.view(torch.float32).view(len(stored), -1)


@cache
def _pairs(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """The two values of each byte, together as one item of 8 bytes. A table is several times faster than arithmetic."""
    codes, byte = torch.tensor(values), torch.arange(256)
    return torch.stack([codes[byte & 15], codes[byte >> 4]], 1).view(torch.int64).flatten().to(device)


def numbers(stored: torch.Tensor) -> torch.Tensor:
    """fp32 of 8-bit floats."""
    items = stored.contiguous().view(torch.uint8).flatten()
    single = _numbers(stored.dtype, stored.device)
    if len(items) % 2 or items.storage_offset() % 2:
        return single.index_select(0, items.int()).view(stored.shape)
    both = items.view(torch.int16).int().bitwise_and_(0xFFFF)
    return _two(stored.dtype, stored.device).index_select(0, both).view(torch.float32).view(stored.shape)


@cache
def _numbers(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Of each byte."""
    return torch.arange(256, dtype=torch.uint8).view(dtype).float().to(device)


@cache
def _two(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Of each two bytes, together as one item: half as many look-ups."""
    single, both = _numbers(dtype, torch.device("cpu")), torch.arange(1 << 16)
    return torch.stack([single[both & 255], single[both >> 8]], 1).view(torch.int64).flatten().to(device)
