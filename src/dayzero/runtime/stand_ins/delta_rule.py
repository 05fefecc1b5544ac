"""Stand-ins for recurrent attention functions (of fla): the delta rule in its variants and plain linear attention.

Arguments have the library's names and defaults. Those that only steer a kernel (context parallelism aside) change
nothing here.
"""

from __future__ import annotations

from typing import Any

import torch

from dayzero.ops import impl

from .recording import unsupported

CHUNK = 64
"""Tokens of a chunk where a call does not say: what these kernels take."""


def _delta(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor | None, beta: torch.Tensor | None, *,
    scale: float | None, state: torch.Tensor | None, final: bool, cu_seqlens: torch.Tensor | None, chunk: int,
    value_first: bool, unit: bool, gated: bool = False, a_log: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, bound: float | None = None, sigmoid: bool = False, negative: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    out, last = impl.linear_attention.delta_rule(
        q, k, v, g, beta, k.shape[-1] ** -0.5 if scale is None else scale, state, cu_seqlens, chunk, value_first, unit,
        gated, a_log, bias, bound, sigmoid, negative)
    return out, last if final else None


def chunk_kda(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, scale: float | None = None,
    initial_state: torch.Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False,
    safe_gate: bool = False, lower_bound: float | None = None, disable_recompute: bool = False,
    return_intermediate_states: bool = False, state_v_first: bool = False, cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None, cp_context: Any = None, use_graph: bool = False,
    max_num_seqs: int | None = None, A_log: torch.Tensor | None = None,  # noqa: N803
    dt_bias: torch.Tensor | None = None, chunk_size: int = CHUNK, transpose_state_layout: bool = False, **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Delta rule with a decay for each channel, in chunks."""
    unsupported(cp_context=cp_context, return_intermediate_states=return_intermediate_states)
    return _delta(q, k, v, g, beta, scale=scale, state=initial_state, final=output_final_state, cu_seqlens=cu_seqlens,
                  chunk=chunk_size, value_first=state_v_first or transpose_state_layout, unit=use_qk_l2norm_in_kernel,
                  gated=use_gate_in_kernel, a_log=A_log, bias=dt_bias, bound=lower_bound,
                  sigmoid=use_beta_sigmoid_in_kernel, negative=allow_neg_eigval)


def fused_recurrent_kda(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    A_log: torch.Tensor | None = None, dt_bias: torch.Tensor | None = None, scale: float | None = None,  # noqa: N803
    initial_state: torch.Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False,
    lower_bound: float | None = None, state_v_first: bool = False, cu_seqlens: torch.Tensor | None = None,
    transpose_state_layout: bool = False, **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """The same, token by token."""
    return _delta(q, k, v, g, beta, scale=scale, state=initial_state, final=output_final_state, cu_seqlens=cu_seqlens,
                  chunk=0, value_first=state_v_first or transpose_state_layout, unit=use_qk_l2norm_in_kernel,
                  gated=use_gate_in_kernel, a_log=A_log, bias=dt_bias, bound=lower_bound,
                  sigmoid=use_beta_sigmoid_in_kernel, negative=allow_neg_eigval)


def chunk_gated_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, scale: float | None = None,
    initial_state: torch.Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False, state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None, cu_seqlens_cpu: torch.Tensor | None = None,
    chunk_indices: torch.Tensor | None = None, cp_context: Any = None, head_first: bool = False,
    use_gate_in_kernel: bool = False, A_log: torch.Tensor | None = None,  # noqa: N803
    dt_bias: torch.Tensor | None = None, chunk_size: int = CHUNK, transpose_state_layout: bool = False, **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Delta rule with a decay for each head, in chunks."""
    unsupported(cp_context=cp_context, head_first=head_first)
    return _delta(q, k, v, g, beta, scale=scale, state=initial_state, final=output_final_state, cu_seqlens=cu_seqlens,
                  chunk=chunk_size, value_first=state_v_first or transpose_state_layout, unit=use_qk_l2norm_in_kernel,
                  gated=use_gate_in_kernel, a_log=A_log, bias=dt_bias, sigmoid=use_beta_sigmoid_in_kernel,
                  negative=allow_neg_eigval)


def fused_recurrent_gated_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor | None = None, gk: torch.Tensor | None = None,
    gv: torch.Tensor | None = None, beta: torch.Tensor | None = None, scale: float | None = None,
    initial_state: torch.Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False, A_log: torch.Tensor | None = None,  # noqa: N803
    dt_bias: torch.Tensor | None = None, use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False,
    state_v_first: bool = False, cu_seqlens: torch.Tensor | None = None, transpose_state_layout: bool = False, **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """The same, token by token."""
    unsupported(gv=gv, gk=gk if g is not None else None)
    return _delta(q, k, v, gk if g is None else g, beta, scale=scale, state=initial_state, final=output_final_state,
                  cu_seqlens=cu_seqlens, chunk=0, value_first=state_v_first or transpose_state_layout,
                  unit=use_qk_l2norm_in_kernel, gated=use_gate_in_kernel, a_log=A_log, bias=dt_bias,
                  sigmoid=use_beta_sigmoid_in_kernel, negative=allow_neg_eigval)


def chunk_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, scale: float | None = None,
    initial_state: torch.Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None, cu_seqlens_cpu: torch.Tensor | None = None, head_first: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Delta rule without a decay, in chunks."""
    unsupported(head_first=head_first)
    return _delta(q, k, v, None, beta, scale=scale, state=initial_state, final=output_final_state,
                  cu_seqlens=cu_seqlens, chunk=CHUNK, value_first=False, unit=use_qk_l2norm_in_kernel)


def fused_recurrent_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor | None = None, scale: float | None = None,
    initial_state: torch.Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None, head_first: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """The same, token by token."""
    unsupported(head_first=head_first)
    return _delta(q, k, v, None, beta, scale=scale, state=initial_state, final=output_final_state,
                  cu_seqlens=cu_seqlens, chunk=0, value_first=False, unit=use_qk_l2norm_in_kernel)


def fused_kda_gate(
    g: torch.Tensor, A_log: torch.Tensor | None = None, dt_bias: torch.Tensor | int | None = None,  # noqa: N803
    lower_bound: float | None = None, output_dtype: torch.dtype = torch.float32, g_bias: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Log decay of a delta rule from what a projection gives: [..., H, K]. Earlier versions took [..., H * K], the size
    of a head in the place of the bias, and the bias as `g_bias`."""
    if isinstance(dt_bias, int):
        g, dt_bias = g.view(*g.shape[:-1], -1, dt_bias), g_bias
    return impl.linear_attention.gate(g[None] if g.dim() == 3 else g, A_log, dt_bias, lower_bound).view(
        g.shape).to(output_dtype)


def fused_gdn_gate(
    g: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor | None = None,  # noqa: N803
    output_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:  # fmt: skip
    """The same for a decay of each head: [B, T, H]."""
    return impl.linear_attention.gate(g, A_log, dt_bias, None).to(output_dtype)
