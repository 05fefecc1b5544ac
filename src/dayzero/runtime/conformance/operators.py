"""Check: operators give what the host gives in f64, within the rounding of their dtype.

The bound follows from the operator's definition. A result of n operations (its `flops` for each value) that are summed
in pairs in f32 is off by u32 * log2(n); each of `roundings` intermediate results is rounded to the dtype once. Four
times that is allowed, as the root mean square of the difference over that of the result (Higham, Accuracy and Stability
of Numerical Algorithms, 4.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

import dayzero.ops.impl  # noqa: F401  (registers torch.ops.dayzero)
from dayzero.backends import Backend
from dayzero.ops import OPERATORS

from .cases import CASES, Case
from .nouns import require

_SLACK = 4.0
_UNIT = 2.0**-24
"""Rounding of f32."""
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def parts(backend: Backend) -> Iterator[tuple[str, Callable[[], str]]]:
    """Each case in each dtype."""
    for case in CASES:
        yield case.name, partial(_compare, backend, case)


def tolerance(case: Case, dtype: torch.dtype, values: int) -> float:
    """Relative difference that rounding explains, for results of so many values."""
    each = max(2.0, OPERATORS.get(case.operator).flops(_axes(case.axes)) / values)
    return _SLACK * (case.roundings * torch.finfo(dtype).eps / 2 + _UNIT * math.log2(each))


def _axes(axes: Mapping[str, float]) -> dict[str, float]:
    """Sizes of elements do not matter for operations."""
    return {**dict.fromkeys(("item", "weight_item", "state_item", "score_item", "index_item"), 4.0), **axes}


def _compare(backend: Backend, case: Case) -> str:
    device = backend.device()
    told = []
    for name, dtype in DTYPES.items():
        given = case.inputs(torch.Generator().manual_seed(0), dtype)
        with torch.no_grad():
            got = _tuple(case.run(*(_to(each, device) for each in given)))
            expected = _tuple(case.run(*(_wide(each) for each in given)))
        require(all(each.device.type == device.type for each in got), f"{name}: a result is not on the device")
        error = max(_difference(left, right, name) for left, right in zip(got, expected, strict=True))
        limit = tolerance(case, dtype, max(each.numel() for each in expected))
        require(error <= limit, f"{name}: off by {error:.1e} of the result, rounding explains {limit:.1e}")
        told.append(f"{name} {error:.1e} of {limit:.1e}")
    return ", ".join(told)


def _difference(got: torch.Tensor, expected: torch.Tensor, dtype: str) -> float:
    """Relative, of roots of mean squares; integers have to be equal."""
    require(got.shape == expected.shape, f"{dtype}: shape {tuple(got.shape)} instead of {tuple(expected.shape)}")
    host = got.cpu()
    if not host.is_floating_point():
        require(torch.equal(host, expected), f"{dtype}: other indices than on the host")
        return 0.0
    size = float(expected.double().norm())
    difference = float((host.double() - expected.double()).norm())
    require(math.isfinite(difference), f"{dtype}: there are values that are not finite")
    return difference / size if size else difference


def _to(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)
