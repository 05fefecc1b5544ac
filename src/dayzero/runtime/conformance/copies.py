"""Check: values of every dtype go to the device and come back bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from dayzero.backends import Backend

from .nouns import Failure, require

REQUIRED = (torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
"""Without these no release runs."""
OTHERS = (torch.float64, torch.float16, torch.int16, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.complex64)


def parts(backend: Backend) -> Iterator[tuple[str, Callable[[], str]]]:
    """One."""
    yield "", lambda: _copies(backend)


def _copies(backend: Backend) -> str:
    device = backend.device()
    without = []
    for dtype in (*REQUIRED, *OTHERS):
        given = _values(dtype)
        try:
            there = given.to(device, copy=True)
        except (TypeError, NotImplementedError, RuntimeError) as error:
            if dtype in REQUIRED:
                raise Failure(f"{_name(dtype)} cannot be put there: {error}") from error
            without.append(_name(dtype))
            continue
        _compare(given, there, device)
    fine = len(REQUIRED) + len(OTHERS) - len(without)
    return f"{fine} dtypes{'; not ' + ', '.join(without) if without else ''}"


def _compare(given: torch.Tensor, there: torch.Tensor, device: torch.device) -> None:
    name = _name(given.dtype)
    require(there.device.type == device.type and there.dtype == given.dtype, f"{name}: it is {there.dtype} on "
                                                                             f"{there.device}")
    require(_same(there.cpu(), given), f"{name}: what comes back is not what was put there")
    target = torch.empty(given.shape, dtype=given.dtype, device=device)
    target.copy_(given, non_blocking=True)
    require(_same(target.cpu(), given), f"{name}: copy_() changed values")
    # every second row of the transpose: strides in both directions
    view, expected = there.T[1::2], given.T[1::2]
    require(_same(view.cpu(), expected), f"{name}: a strided view comes back changed")
    there.T[1::2] = given.T[::2].to(device)
    changed = given.clone()
    changed.T[1::2] = given.T[::2]
    require(_same(there.cpu(), changed), f"{name}: writing through a strided view changes the wrong values")


def _values(dtype: torch.dtype) -> torch.Tensor:
    """[37, 24] of random bits, NaNs among them."""
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.bool:
        return torch.randint(0, 2, (37, 24), generator=generator).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (37, 24 * size), dtype=torch.uint8, generator=generator).view(dtype)


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(left.contiguous().view(torch.uint8),
                                                     right.contiguous().view(torch.uint8))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
