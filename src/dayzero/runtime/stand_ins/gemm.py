"""Stand-ins for matrix products (of deep_gemm and grouped_gemm) and for the gated activations around them (of fla,
liger_kernel, xformers, flash_attn)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear, silu

from dayzero.ops import impl

from .recording import unsupported

Scaled = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""Values, or values and their scales for blocks."""


def _parts(operand: Scaled) -> tuple[torch.Tensor, torch.Tensor | None]:
    return (operand, None) if isinstance(operand, torch.Tensor) else (operand[0], operand[1])


def gemm_nt(a: Scaled, b: Scaled, d: torch.Tensor, c: torch.Tensor | None = None, recipe: Any = None,
            recipe_a: Any = None, recipe_b: Any = None, compiled_dims: str = "nk",
            disable_ue8m0_cast: bool = False) -> None:  # fmt: skip
    """d <- a b' (+ c): a [M, K], b [N, K]."""
    impl.gemm.scaled_gemm(*_parts(a), *_parts(b), d, c)


def gemm_nt_legacy(lhs: Scaled, rhs: Scaled, out: torch.Tensor) -> None:
    """out <- lhs rhs'."""
    impl.gemm.scaled_gemm(*_parts(lhs), *_parts(rhs), out, None)


def m_grouped_contiguous(a: Scaled, b: Scaled, d: torch.Tensor, grouped_layout: torch.Tensor, recipe: Any = None,
                         recipe_a: Any = None, recipe_b: Any = None, compiled_dims: str = "nk",
                         disable_ue8m0_cast: bool = False, use_psum_layout: bool = False,
                         **_: Any) -> None:  # fmt: skip
    """Rows a [M, K], each with the number of its matrix in b [E, N, K]."""
    unsupported(use_psum_layout=use_psum_layout)
    impl.gemm.scaled_grouped_gemm(*_parts(a), *_parts(b), d, grouped_layout, 0)


def m_grouped_contiguous_legacy(lhs: Scaled, rhs: Scaled, out: torch.Tensor, m_indices: torch.Tensor) -> None:
    """The same, older names."""
    impl.gemm.scaled_grouped_gemm(*_parts(lhs), *_parts(rhs), out, m_indices, 0)


def m_grouped_masked(a: Scaled, b: Scaled, d: torch.Tensor, masked_m: torch.Tensor, expected_m: int,
                     recipe: Any = None, recipe_a: Any = None, recipe_b: Any = None, compiled_dims: str = "nk",
                     disable_ue8m0_cast: bool = False) -> None:  # fmt: skip
    """a [E, R, K], of which the first `masked_m` rows of each count."""
    impl.gemm.scaled_grouped_gemm(*_parts(a), *_parts(b), d, masked_m, expected_m)


def m_grouped_masked_legacy(lhs: Scaled, rhs: Scaled, out: torch.Tensor, masked_m: torch.Tensor,
                            expected_m: int) -> None:  # fmt: skip
    """The same, older names."""
    impl.gemm.scaled_grouped_gemm(*_parts(lhs), *_parts(rhs), out, masked_m, expected_m)


def gmm(a: torch.Tensor, b: torch.Tensor, batch_sizes: torch.Tensor, trans_b: bool = False) -> torch.Tensor:
    """Rows a [M, K] in the order of their matrices b [E, K, N], `batch_sizes` [E] of each."""
    out: torch.Tensor = impl.gemm.grouped_gemm(a, b, batch_sizes, trans_b)
    return out


def gmm_backend(a: torch.Tensor, b: torch.Tensor, batch_sizes: torch.Tensor, trans_a: bool = False,
                trans_b: bool = False, c: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
    """The same; `trans_a` sums over the rows: [E, K, N] from a [M, K] and b [M, N]."""
    out: torch.Tensor = (impl.gemm.grouped_gemm_weights(a, b, batch_sizes) if trans_a
                         else impl.gemm.grouped_gemm(a, b, batch_sizes, trans_b))
    return out if c is None else c.copy_(out)


def swiglu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """silu(x) y."""
    return silu(x) * y


def swiglu_linear(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """silu(x) y, projected."""
    return linear(silu(x) * y, weight, bias)


def xformers_swiglu(x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor | None, w2: torch.Tensor,
                    b2: torch.Tensor | None, w3: torch.Tensor, b3: torch.Tensor | None, *,
                    op: Any = None) -> torch.Tensor:  # fmt: skip
    """The whole gated feed-forward."""
    return linear(silu(linear(x, w1, b1)) * linear(x, w2, b2), w3, b3)


class SwiGLUMLP(nn.Module):
    """A gated feed-forward made from a config."""

    def __init__(self, config: Any, intermediate_size: int | None = None) -> None:
        super().__init__()
        self.config, self.hidden_size = config, config.hidden_size
        self.intermediate_size = intermediate_size or config.intermediate_size
        self.gate_proj = nn.Linear(self.hidden_size, self.intermediate_size, bias=False)
        self.up_proj = nn.Linear(self.hidden_size, self.intermediate_size, bias=False)
        self.down_proj = nn.Linear(self.intermediate_size, self.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., hidden_size]."""
        out: torch.Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return out


def ceil_div(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()
