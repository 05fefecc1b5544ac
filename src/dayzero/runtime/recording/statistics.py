"""Statistics of a tensor: few passes over it while it is in the processor's cache, and nothing waits for a device."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite

import torch

from dayzero.schema.golden import Statistics

_SINGLE = (torch.bfloat16, torch.float16, torch.float32)
_DOUBLE = (torch.float64, torch.int64, torch.int32)
_MANY, _BLOCK = 2**20, 2**18
"""Of more values all figures of such a block are made one after the other: it stays near the processor meanwhile."""
NOTHING = Statistics(count=0, nan=0, inf=0, minimum=0.0, maximum=0.0, mean=0.0, rms=0.0, max_abs=0.0)


def measured(value: torch.Tensor) -> Callable[[], Statistics]:
    """What is to be called for the figures, by any thread: on the host they are known at once, on a device they are
    waited for then. `value` may change meanwhile."""
    if not value.numel():
        return lambda: NOTHING
    if value.is_complex():
        value = torch.view_as_real(value)
    if value.dtype not in _SINGLE:
        value = value.to(torch.float64 if value.dtype in _DOUBLE else torch.float32)
    count = value.numel()
    if value.device.type == "cpu":
        known = _of_all(value)
        return lambda: known
    figures = _masked(value)
    return lambda: _of_masked(count, figures.tolist())


def _of_all(value: torch.Tensor) -> Statistics:
    """One of the figures is not finite when a value is not."""
    flat = value.reshape(-1)
    blocks = [_figures(flat)] if len(flat) <= _MANY else [
        _figures(block) for block in torch.split(flat, _BLOCK)]
    lows, highs, totals, norms = zip(*blocks, strict=True)
    low, high, total, squares = min(lows), max(highs), sum(totals), sum(norms)
    if all(map(isfinite, (low, high, total, squares))) and (squares or low == high == 0.0):  # small squares are lost
        return _told(value.numel(), low, high, total, squares**0.5)
    return _of_some(value)


def _figures(value: torch.Tensor) -> tuple[float, float, float, float]:
    """Smallest, largest, sum, sum of squares of [values]."""
    low, high = torch.aminmax(value)
    wide = value.to(torch.float32) if value.dtype in _SINGLE else value
    return float(low), float(high), float(wide.sum()), float(torch.dot(wide, wide))  # a norm takes three times as long


def _told(count: int, low: float, high: float, total: float, norm: float, nan: int = 0, infinite: int = 0
          ) -> Statistics:
    kept = max(1, count - nan - infinite)
    return Statistics(count=count, nan=nan, inf=infinite, minimum=low, maximum=high, mean=total / kept,
                      rms=norm / kept**0.5, max_abs=max(abs(low), abs(high)))


def _of_some(value: torch.Tensor) -> Statistics:
    wide = value.to(torch.float64)
    nan, infinite = int(wide.isnan().sum()), int(wide.isinf().sum())
    kept = wide[wide.isfinite()]
    if not kept.numel():
        return _told(value.numel(), 0.0, 0.0, 0.0, 0.0, nan, infinite)
    largest = float(kept.abs().max()) or 1.0  # squares of large values do not fit
    return _told(value.numel(), float(kept.min()), float(kept.max()), float(kept.sum()),
                 float(torch.linalg.vector_norm(kept / largest)) * largest, nan, infinite)


def _masked(value: torch.Tensor) -> torch.Tensor:
    """[6]: smallest, largest, sum, norm of the finite ones, how many are no numbers, and infinite."""
    wide = torch.float32 if value.dtype in _SINGLE else value.dtype
    finite = value.isfinite()
    kept = torch.where(finite, value, 0)
    return torch.stack([each.to(wide) for each in (
        torch.where(finite, value, inf).amin(), torch.where(finite, value, -inf).amax(), kept.sum(dtype=wide),
        torch.linalg.vector_norm(kept, dtype=wide), value.isnan().sum(), value.isinf().sum())])


def _of_masked(count: int, figures: list[float]) -> Statistics:
    low, high, total, norm, nan, infinite = figures
    if low > high:
        low = high = 0.0
    total, norm = (each if isfinite(each) else 0.0 for each in (total, norm))
    return _told(count, low, high, total, norm, int(nan), int(infinite))
