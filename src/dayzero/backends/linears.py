"""Products with a model's weight matrices by oneDNN, which torch brings, in the place of the library that torch takes
for f32: for one row and for many it takes about half to nine tenths of the time on processors that are not Intel's
(benchmarks/bench_decode.py). Sums are taken in another order, so results differ in their last digits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from .forwards import marked, replaced

LIBRARY, ONEDNN = "library", "onednn"
_CLOSE = 1e-5
"""Of products of values around 1, relative to the largest."""


def linears_of(model: torch.nn.Module, *, onednn: bool) -> AbstractContextManager[int]:
    """Inside: linear modules that keep torch's own forward compute by oneDNN where their tensors are plain f32 ones of
    the host, or (not `onednn`) as the model has it. Gives how many are changed."""
    if not onednn:
        return replaced(dict.fromkeys(marked(model, "onednn")))
    return replaced({module: _forward(module) for module in model.modules() if _plain(module)} if _works() else {})


def _plain(module: torch.nn.Module) -> bool:
    """A linear of torch's class whose forward nobody has replaced."""
    return type(module) is torch.nn.Linear and "forward" not in vars(module)


def _forward(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    product: Any = torch.ops.mkldnn._linear_pointwise
    original, parameters, plain = type(module).forward, module._parameters, (torch.Tensor, torch.nn.Parameter)

    def forward(input: torch.Tensor) -> torch.Tensor:
        weight, bias = parameters["weight"], parameters["bias"]  # looked up at each call: they may have moved
        if not (type(input) is torch.Tensor and type(weight) in plain and input.dtype is weight.dtype is torch.float32
                and input.device.type == weight.device.type == "cpu" and not torch.is_grad_enabled() and input.numel()
                and weight.is_contiguous() and (bias is None or (type(bias) in plain and bias.is_contiguous()))):
            return original(module, input)  # type: ignore[no-any-return]
        return product(input, weight, bias, "none", [], "")  # type: ignore[no-any-return]

    forward.onednn = True  # type: ignore[attr-defined]
    return forward


def _works() -> bool:
    """Whether this torch has the operator, and it computes what torch's linear does."""
    library: Any = torch.backends.mkldnn
    if not library.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    values, bias = torch.linspace(-1, 1, 64 * 48).reshape(64, 48), torch.linspace(2, -2, 64)
    with torch.no_grad():
        expected = torch.nn.functional.linear(values[:3], values, bias)
        got = torch.ops.mkldnn._linear_pointwise(values[:3], values, bias, "none", [], "")
    return bool((expected - got).abs().max() <= _CLOSE * expected.abs().max())
