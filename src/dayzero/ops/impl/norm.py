"""Normalisation over the last axis, of root mean square or of mean and variance, with what kernels fuse to it: a
residual that is added before, a gate before or after, groups."""

from __future__ import annotations

from typing import Any

import torch

from dayzero.ops.definition import OPERATORS

from .register import activate, operator


def _shapes(x: torch.Tensor, weight: Any, bias: Any, gate: Any, residual: torch.Tensor | None, eps: float, rms: bool,
            activation: str, gate_first: bool, groups: int, offset: float, wide: bool) -> Any:  # fmt: skip
    total = x if residual is None else residual
    return (torch.empty_like(x, memory_format=torch.contiguous_format),
            torch.empty_like(x, dtype=torch.float32 if wide else total.dtype,
                             memory_format=torch.contiguous_format))  # fmt: skip


def _flops(x: torch.Tensor, *_: Any) -> float:
    width = x.shape[-1]
    return OPERATORS.get("norm").flops({"tokens": x.numel() / width if width else 0, "hidden": width})


@operator("norm(Tensor x, Tensor? weight, Tensor? bias, Tensor? gate, Tensor? residual, float eps, bool rms, "
          "str activation, bool gate_first, int groups, float offset, bool wide) -> (Tensor, Tensor)",
          shapes=_shapes, flops=_flops)  # fmt: skip
def norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, gate: torch.Tensor | None,
    residual: torch.Tensor | None, eps: float, rms: bool, activation: str, gate_first: bool, groups: int,
    offset: float, wide: bool,
) -> Any:  # fmt: skip
    """Output in the dtype of `x` and the sum of `x` and `residual` (in fp32 when `wide`). The gate, through its
    activation, multiplies before the norm (`gate_first`) or after weight and bias; each of `groups` equal parts of the
    last axis is normalised by itself; the weight is used as `offset + weight`."""
    total = x.float() if residual is None else x.float() + residual.float()
    value = total
    opened = None if gate is None else activate(gate.float(), activation)
    if opened is not None and gate_first:
        value = value * opened
    parts = value.reshape(*value.shape[:-1], groups, -1)
    if not rms:
        parts = parts - parts.mean(-1, keepdim=True)
    value = (parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + eps)).flatten(-2)
    if weight is not None:
        value = value * (weight.float() + offset)
    if bias is not None:
        value = value + bias.float()
    if opened is not None and not gate_first:
        value = value * opened
    kept = torch.float32 if wide else (x if residual is None else residual).dtype
    return value.to(x.dtype).contiguous(), total.to(kept).contiguous().clone()
