"""Stand-ins for linear attention without the delta rule (of fla): gated, with a constant decay, or with none."""

from __future__ import annotations

from typing import Any

import torch

from dayzero.ops import impl

from .delta_rule import CHUNK
from .recording import unsupported

Result = tuple[torch.Tensor, torch.Tensor | None]


def _linear(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor | None, *, scale: float | None,
    state: torch.Tensor | None, final: bool, cu_seqlens: torch.Tensor | None, chunk: int, value_first: bool = False,
) -> Result:  # fmt: skip
    out, last = impl.linear_attention.linear_attention(
        q, k, v, g, k.shape[-1] ** -0.5 if scale is None else scale, state, cu_seqlens, chunk, value_first)
    return out, last if final else None


def chunk_gla(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, scale: float | None = None,
    initial_state: torch.Tensor | None = None, output_final_state: bool = False, state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None, cu_seqlens_cpu: torch.Tensor | None = None, head_first: bool = False,
) -> Result:  # fmt: skip
    """A decay for each channel of the key, in chunks."""
    unsupported(head_first=head_first)
    return _linear(q, k, v, g, scale=scale, state=initial_state, final=output_final_state, cu_seqlens=cu_seqlens,
                   chunk=CHUNK, value_first=state_v_first)


def fused_recurrent_gla(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gk: torch.Tensor | None = None, gv: torch.Tensor | None = None,
    scale: float | None = None, initial_state: torch.Tensor | None = None, output_final_state: bool = False,
    reverse: bool = False, state_v_first: bool = False, cu_seqlens: torch.Tensor | None = None, **_: Any,
) -> Result:  # fmt: skip
    """The same, token by token."""
    unsupported(gv=gv, reverse=reverse)
    return _linear(q, k, v, gk, scale=scale, state=initial_state, final=output_final_state, cu_seqlens=cu_seqlens,
                   chunk=0, value_first=state_v_first)


def chunk_simple_gla(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor | None = None,
    g_gamma: torch.Tensor | None = None, scale: float | None = None, initial_state: torch.Tensor | None = None,
    output_final_state: bool = False, state_v_first: bool = False, cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None, head_first: bool = False, **_: Any,
) -> Result:  # fmt: skip
    """A decay for each head: `g` of each token, or `g_gamma` [H] of all; in chunks."""
    unsupported(head_first=head_first)
    return _linear(q, k, v, _either(g, g_gamma), scale=scale,
                   state=initial_state, final=output_final_state, cu_seqlens=cu_seqlens, chunk=CHUNK,
                   value_first=state_v_first)


def fused_recurrent_simple_gla(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor | None = None,
    g_gamma: torch.Tensor | None = None, scale: float | None = None, initial_state: torch.Tensor | None = None,
    output_final_state: bool = False, reverse: bool = False, state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None, **_: Any,
) -> Result:  # fmt: skip
    """The same, token by token."""
    unsupported(reverse=reverse)
    return _linear(q, k, v, _either(g, g_gamma), scale=scale,
                   state=initial_state, final=output_final_state, cu_seqlens=cu_seqlens, chunk=0,
                   value_first=state_v_first)


def _either(g: torch.Tensor | None, g_gamma: torch.Tensor | None) -> torch.Tensor | None:
    unsupported(g_gamma=g_gamma if g is not None else None)
    return g_gamma if g is None else g


def _lightning_decay(q: torch.Tensor, layer_idx: int, num_layers: int) -> torch.Tensor:
    heads = q.shape[2]
    rate = 8 / heads * (1 - layer_idx / num_layers)
    return -rate * torch.arange(heads, dtype=torch.float32, device=q.device)


def chunk_lightning_attn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer_idx: int, num_layers: int, scale: float | None = None,
    initial_state: torch.Tensor | None = None, output_final_state: bool = False,
    cu_seqlens: torch.Tensor | None = None, **_: Any,
) -> Result:  # fmt: skip
    """A constant decay that grows with the head and shrinks with the layer, in chunks."""
    return _linear(q, k, v, _lightning_decay(q, layer_idx, num_layers), scale=scale, state=initial_state,
                   final=output_final_state, cu_seqlens=cu_seqlens, chunk=CHUNK)


def fused_recurrent_lightning_attn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer_idx: int, num_layers: int, scale: float | None = None,
    initial_state: torch.Tensor | None = None, output_final_state: bool = False, reverse: bool = False,
    cu_seqlens: torch.Tensor | None = None,
) -> Result:  # fmt: skip
    """The same, token by token."""
    unsupported(reverse=reverse)
    return _linear(q, k, v, _lightning_decay(q, layer_idx, num_layers), scale=scale, state=initial_state,
                   final=output_final_state, cu_seqlens=cu_seqlens, chunk=0)


def _retention_decay(q: torch.Tensor) -> torch.Tensor:
    return torch.log1p(-(2.0 ** (-5.0 - torch.arange(q.shape[2], dtype=torch.float32, device=q.device))))


def chunk_retention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None,
    initial_state: torch.Tensor | None = None, output_final_state: bool = False,
    cu_seqlens: torch.Tensor | None = None, **_: Any,
) -> Result:  # fmt: skip
    """Retention: head h keeps 1 - 2 ** (-5 - h) of the state for each token; in chunks."""
    return _linear(q, k, v, _retention_decay(q), scale=scale, state=initial_state, final=output_final_state,
                   cu_seqlens=cu_seqlens, chunk=CHUNK)


def fused_recurrent_retention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None,
    initial_state: torch.Tensor | None = None, output_final_state: bool = False, reverse: bool = False,
    state_v_first: bool = False, cu_seqlens: torch.Tensor | None = None, **_: Any,
) -> Result:  # fmt: skip
    """The same, token by token."""
    unsupported(reverse=reverse)
    return _linear(q, k, v, _retention_decay(q), scale=scale, state=initial_state, final=output_final_state,
                   cu_seqlens=cu_seqlens, chunk=0, value_first=state_v_first)


def chunk_linear_attn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None,
    initial_state: torch.Tensor | None = None, output_final_state: bool = False, normalize: bool = True,
    cu_seqlens: torch.Tensor | None = None,
) -> Result:  # fmt: skip
    """Without decay, in chunks; only with `normalize=False`."""
    unsupported(normalize=normalize)
    return _linear(q, k, v, None, scale=scale, state=initial_state, final=output_final_state, cu_seqlens=cu_seqlens,
                   chunk=CHUNK)


def fused_recurrent_linear_attn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None,
    initial_state: torch.Tensor | None = None, output_final_state: bool = False, reverse: bool = False,
    normalize: bool = False, cu_seqlens: torch.Tensor | None = None,
) -> Result:  # fmt: skip
    """The same, token by token."""
    unsupported(normalize=normalize, reverse=reverse)
    return _linear(q, k, v, None, scale=scale, state=initial_state, final=output_final_state, cu_seqlens=cu_seqlens,
                   chunk=0)
