"""Stand-ins for state space functions (of mamba_ssm)."""

from __future__ import annotations

from math import inf
from typing import Any

import torch
from torch.nn.functional import linear

from dayzero.ops import impl

from .convolution import causal_conv1d_fn
from .norm import rmsnorm_fn
from .recording import unsupported


def selective_scan_fn(
    u: torch.Tensor, delta: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor,  # noqa: N803
    D: torch.Tensor | None = None, z: torch.Tensor | None = None, delta_bias: torch.Tensor | None = None,  # noqa: N803
    delta_softplus: bool = False, return_last_state: bool = False,
) -> Any:  # fmt: skip
    """The scan of [batch, channels, tokens]."""
    unsupported(A=A.is_complex())
    out, state = impl.state_space.selective_scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    return (out, state) if return_last_state else out


def selective_state_update(
    state: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor,  # noqa: N803
    C: torch.Tensor, D: torch.Tensor | None = None, z: torch.Tensor | None = None,  # noqa: N803
    dt_bias: torch.Tensor | None = None, dt_softplus: bool = False, state_batch_indices: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """One token; the state [B, P, N] or [B, H, P, N] is changed in place."""
    unsupported(state_batch_indices=state_batch_indices)
    headless = state.dim() == 3
    if headless:
        state, x, dt, B, C = (each[:, None] for each in (state, x, dt, B, C))  # noqa: N806
        A, D, z = A[None], None if D is None else D[None], None if z is None else z[:, None]  # noqa: N806
        dt_bias = None if dt_bias is None else dt_bias[None]
    out: torch.Tensor = impl.state_space.state_space_update(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus)
    return out[:, 0] if headless else out


def mamba_chunk_scan_combined(
    x: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor, chunk_size: int,  # noqa: N803
    D: torch.Tensor | None = None, z: torch.Tensor | None = None, dt_bias: torch.Tensor | None = None,  # noqa: N803
    initial_states: torch.Tensor | None = None, seq_idx: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None, dt_softplus: bool = False, dt_limit: tuple[float, float] = (0.0, inf),
    return_final_states: bool = False, return_varlen_states: bool = False, state_dtype: torch.dtype | None = None,
) -> Any:  # fmt: skip
    """x [B, T, H, P] in chunks."""
    unsupported(seq_idx=seq_idx,
                return_varlen_states=return_varlen_states)
    out, state = impl.state_space.state_space(x, dt, A, B, C, D, z, dt_bias, initial_states, cu_seqlens, chunk_size,
                                              dt_softplus, *map(float, dt_limit))
    if state_dtype is not None:
        state = state.to(state_dtype)
    return (out, state) if return_final_states else out


def mamba_split_conv1d_scan_combined(
    zxbcdt: torch.Tensor, conv1d_weight: torch.Tensor, conv1d_bias: torch.Tensor | None, dt_bias: torch.Tensor,
    A: torch.Tensor, D: torch.Tensor, chunk_size: int, initial_states: torch.Tensor | None = None,  # noqa: N803
    seq_idx: torch.Tensor | None = None, dt_limit: tuple[float, float] = (0.0, inf), return_final_states: bool = False,
    activation: str = "silu", rmsnorm_weight: torch.Tensor | None = None, rmsnorm_eps: float = 1e-6,
    outproj_weight: torch.Tensor | None = None, outproj_bias: torch.Tensor | None = None, headdim: int | None = None,
    ngroups: int = 1, norm_before_gate: bool = True, state_dtype: torch.dtype | None = None,
) -> Any:  # fmt: skip
    """All of a Mamba-2 block behind its first projection: gate, input, b, c and step of [B, T, ...] in one tensor."""
    heads = D.shape[0]
    width = heads * (D.shape[1] if D.dim() == 2 else headdim or 0)
    state_dim = (zxbcdt.shape[-1] - 2 * width - heads) // ngroups // 2
    z, mixed, dt = torch.split(zxbcdt, [width, width + 2 * ngroups * state_dim, heads], dim=-1)
    mixed = causal_conv1d_fn(mixed.transpose(1, 2), conv1d_weight, conv1d_bias, seq_idx, activation=activation)
    x, b, c = mixed.transpose(1, 2).split([width, ngroups * state_dim, ngroups * state_dim], dim=-1)
    rows = z.shape[:2]
    gate = z.reshape(*rows, heads, -1) if rmsnorm_weight is None else None
    out, state = mamba_chunk_scan_combined(
        x.reshape(*rows, heads, -1), dt, A, b.reshape(*rows, ngroups, -1), c.reshape(*rows, ngroups, -1), chunk_size,
        D, gate, dt_bias, initial_states, seq_idx, None, True, dt_limit, True, state_dtype=state_dtype)
    out = out.flatten(2)
    if rmsnorm_weight is not None:
        out = rmsnorm_fn(out, rmsnorm_weight, None, z, rmsnorm_eps, width // ngroups, norm_before_gate)
    if outproj_weight is not None:
        out = linear(out, outproj_weight, outproj_bias)
    return (out, state) if return_final_states else out
