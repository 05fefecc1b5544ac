"""Stand-ins for the short causal convolution (of causal_conv1d and fla)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dayzero.ops import impl

from .recording import unsupported


def causal_conv1d_fn(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, seq_idx: torch.Tensor | None = None,
    initial_states: torch.Tensor | None = None, return_final_states: bool = False,
    final_states_out: torch.Tensor | None = None, activation: str | None = None,
) -> Any:  # fmt: skip
    """x [B, D, T], states [B, D, W - 1]."""
    unsupported(seq_idx=seq_idx)
    out, states = impl.convolution.convolution(x.transpose(1, 2), weight, bias, initial_states, None, None,
                                               activation or "", weight.shape[1] - 1)
    if final_states_out is not None:
        states = final_states_out.copy_(states)
    return (out.transpose(1, 2), states) if return_final_states else out.transpose(1, 2)


def causal_conv1d_update(
    x: torch.Tensor, conv_state: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
    activation: str | bool | None = None, cache_seqlens: torch.Tensor | None = None,
    conv_state_indices: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """x [B, D] or [B, D, T]; the state [B, D, S] is changed in place."""
    name = ("silu" if activation else "") if isinstance(activation, bool) else activation or ""
    tokens = x[:, None] if x.dim() == 2 else x.transpose(1, 2)
    out: torch.Tensor = impl.convolution.convolution_update(tokens, conv_state, weight, bias, cache_seqlens,
                                                            conv_state_indices, name)
    return out[:, 0] if x.dim() == 2 else out.transpose(1, 2)


def fla_causal_conv1d(
    x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None, initial_state: torch.Tensor | None = None,
    output_final_state: bool | None = False, activation: str | None = None, backend: str | None = "triton",
    cu_seqlens: torch.Tensor | None = None, cu_seqlens_cpu: torch.Tensor | None = None,
    chunk_indices: torch.Tensor | None = None, cp_context: Any = None, **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """x [B, T, D] (or [B, T, H, D / H]), states [N, D, W]."""
    unsupported(cp_context=cp_context)
    if weight is None:
        raise TypeError("a convolution has a weight")
    out, state = impl.convolution.convolution(
        x.flatten(2), weight, bias, initial_state, cu_seqlens, None if residual is None else residual.flatten(2),
        activation or "", weight.shape[1])
    return out.view(x.shape), state if output_final_state else None


def fla_causal_conv1d_update(
    x: torch.Tensor, cache: torch.Tensor, residual: torch.Tensor | None = None, weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, activation: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """One token of each sequence, [N, D], [1, N, D] or [N, 1, D]; the state [N, D, W] is changed in place."""
    if weight is None:
        weight = torch.ones(cache.shape[1:], dtype=x.dtype, device=x.device)
    tokens = x.reshape(cache.shape[0], 1, cache.shape[1])
    out = impl.convolution.convolution_update(tokens, cache, weight, bias, None, None, activation or "").view(x.shape)
    return (out if residual is None else out + residual), cache


class ShortConvolution(nn.Conv1d):
    """The convolution as a module: weight [D, 1, W]."""

    def __init__(
        self, hidden_size: int, kernel_size: int, bias: bool = False, activation: str | None = "silu",
        backend: str | None = "triton", device: Any = None, dtype: torch.dtype | None = None, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__(hidden_size, hidden_size, kernel_size, padding=kernel_size - 1, groups=hidden_size, bias=bias,
                         device=device, dtype=dtype)
        self.hidden_size, self.activation, self.backend = hidden_size, activation, backend

    @property
    def state_size(self) -> int:
        """Values that one sequence keeps."""
        return self.hidden_size * int(self.kernel_size[0])

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, residual: torch.Tensor | None = None, mask: torch.Tensor | None = None,
        cache: torch.Tensor | None = None, output_final_state: bool = False, cu_seqlens: torch.Tensor | None = None,
        chunk_indices: torch.Tensor | None = None, **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        """x [B, T, D] -> output and state [N, D, W]. A single token of each sequence changes the state in place."""
        sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        if mask is not None:
            x = x * mask[..., None]
        weight = self.weight[:, 0]
        if x.shape[0] * x.shape[1] == sequences and not torch.is_grad_enabled():
            state = x.new_zeros(sequences, *weight.shape) if cache is None else cache
            out, state = fla_causal_conv1d_update(x, state, residual, weight, self.bias, self.activation)
            return out, state if output_final_state else None
        return fla_causal_conv1d(x, weight, self.bias, residual, cache, output_final_state, self.activation,
                                 cu_seqlens=cu_seqlens)
