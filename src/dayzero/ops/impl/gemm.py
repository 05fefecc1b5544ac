"""Matrix products that a library of its own does: rows of several experts at once, and operands with scales for blocks
of values."""

from __future__ import annotations

from typing import Any

import torch

from .register import operator


def _width(b: torch.Tensor, transposed: bool) -> int:
    return int(b.shape[-2 if transposed else -1])


@operator("grouped_gemm(Tensor a, Tensor b, Tensor sizes, bool transposed) -> Tensor",
          shapes=lambda a, b, sizes, transposed: a.new_empty(a.shape[0], _width(b, transposed)),
          flops=lambda a, b, sizes, transposed: 2 * a.numel() * _width(b, transposed))  # fmt: skip
def grouped_gemm(a: torch.Tensor, b: torch.Tensor, sizes: torch.Tensor, transposed: bool) -> Any:
    """Rows a [M, K] in the order of their experts, `sizes` [E] of them each, times the expert's matrix b [E, K, N], or
    [E, N, K] when `transposed`. Rows beyond the last size are zeros."""
    out = a.new_zeros(a.shape[0], _width(b, transposed))
    start = 0
    for expert, size in enumerate(sizes.tolist()):
        matrix = b[expert].T if transposed else b[expert]
        out[start:start + size] = a[start:start + size] @ matrix
        start += size
    return out


@operator("grouped_gemm_weights(Tensor a, Tensor b, Tensor sizes) -> Tensor",
          shapes=lambda a, b, sizes: a.new_empty(sizes.shape[0], a.shape[1], b.shape[1]),
          flops=lambda a, b, sizes: 2 * a.numel() * b.shape[1])  # fmt: skip
def grouped_gemm_weights(a: torch.Tensor, b: torch.Tensor, sizes: torch.Tensor) -> Any:
    """[E, K, N]: for each expert, its rows of a [M, K], transposed, times its rows of b [M, N]."""
    out = a.new_zeros(sizes.shape[0], a.shape[1], b.shape[1])
    start = 0
    for expert, size in enumerate(sizes.tolist()):
        out[expert] = a[start:start + size].T @ b[start:start + size]
        start += size
    return out


def scaled(values: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """fp32 values [..., M, K] times their scales [..., ceil(M / p), ceil(K / q)], one for a block of p x q; p and q are
    powers of two, at most 128, that the shapes give. Raises ValueError when they give none."""
    wide = values.float()
    if scales is None:
        return wide
    if not scales.dtype.is_floating_point:
        raise ValueError("scales that are packed as integers are not understood")
    for axis in (-2, -1):
        size, count = wide.shape[axis], scales.shape[axis]
        block = next((p for p in (1, 16, 32, 64, 128) if -(-size // p) == count), None)
        if block is None:
            raise ValueError(f"{count} scales for {size} values are no blocks of 1, 16, 32, 64 or 128")
        scales = scales.repeat_interleave(block, dim=axis).narrow(axis, 0, size)
    return wide * scales.float()


@operator("scaled_gemm(Tensor a, Tensor? a_scale, Tensor b, Tensor? b_scale, Tensor(x!) out, Tensor? c) -> ()",
          shapes=lambda *_: None, flops=lambda a, a_scale, b, b_scale, out, c: 2 * a.numel() * b.shape[-2])  # fmt: skip
def scaled_gemm(
    a: torch.Tensor, a_scale: torch.Tensor | None, b: torch.Tensor, b_scale: torch.Tensor | None, out: torch.Tensor,
    c: torch.Tensor | None,
) -> None:  # fmt: skip
    """out [M, N] <- a [M, K] times b [N, K] transposed (+ c), each with scales for blocks or none."""
    product = scaled(a, a_scale) @ scaled(b, b_scale).transpose(-1, -2)
    out.copy_(product if c is None else product + c.float())


def _masked_rows(a: torch.Tensor, expected: int) -> float:
    return float(a.shape[0] * min(expected, a.shape[1]))


@operator("scaled_grouped_gemm(Tensor a, Tensor? a_scale, Tensor b, Tensor? b_scale, Tensor(x!) out, Tensor groups, "
          "int expected) -> ()",
          shapes=lambda *_: None,
          flops=lambda a, a_scale, b, b_scale, out, groups, expected:
          2 * a.numel() * b.shape[-2] if a.dim() == 2 else 2 * _masked_rows(a, expected) * a.shape[2] * b.shape[-2],
          )  # fmt: skip
def scaled_grouped_gemm(
    a: torch.Tensor, a_scale: torch.Tensor | None, b: torch.Tensor, b_scale: torch.Tensor | None, out: torch.Tensor,
    groups: torch.Tensor, expected: int,
) -> None:  # fmt: skip
    """Matrices b [E, N, K]. Rows a [M, K]: `groups` [M] names the expert of each row (negative: none), out [M, N].
    Or a [E, R, K]: `groups` [E] says how many of an expert's R rows count (about `expected`), out [E, R, N]."""
    left, right = scaled(a, a_scale), scaled(b, b_scale)
    for expert in range(b.shape[0]):
        if a.dim() == 2:
            rows = groups == expert
            out[rows] = (left[rows] @ right[expert].T).to(out.dtype)
        else:
            count = int(groups[expert])
            out[expert, :count] = (left[expert, :count] @ right[expert].T).to(out.dtype)
