"""Attention with a constant state: the delta rule and plain linear attention, each with a decay for nothing, for each
head or for each channel, token by token or in chunks.

Query and key [B, T, G, K], value [B, T, H, V], H a multiple of G; log decay None, [H], [B, T, H] or [B, T, H, K]; beta
[B, T, H]; state [N, H, K, V], or [N, H, V, K] when `value_first`, in fp32. Packed sequences have B = 1 and offsets
[N + 1]. For each token:

    state <- exp(decay) * state;  [delta rule] value <- beta * (value - key . state)
    state <- state + key value;   output = scale * query . state
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import softplus

from dayzero.ops.definition import OPERATORS

from .register import lengths, operator

Sequence = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""Query, key, value, log decay [H, T, 1 or K], beta [H, T]; heads first, fp32."""


def step(sequence: Sequence, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Token by token: outputs [H, T, V] and the last state."""
    query, key, value, decay, beta = sequence
    outputs = []
    for i in range(query.shape[1]):
        if decay is not None:
            state = state * decay[:, i, :, None].exp()
        new = value[:, i]
        if beta is not None:
            new = beta[:, i, None] * (new - torch.einsum("hk,hkv->hv", key[:, i], state))
        state = state + key[:, i, :, None] * new[:, None, :]
        outputs.append(torch.einsum("hk,hkv->hv", query[:, i], state))
    return torch.stack(outputs, dim=1) if outputs else value, state


def chunk(sequence: Sequence, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One chunk at once (arXiv:2412.06464, section 3.3): the tokens' corrections of each other are a triangular system,
    (1 + A) new = beta * (value - decayed key . state), A[i, j] = beta[i] * key[i] . key[j] decayed from j to i, j < i.
    """
    query, key, value, decay, beta = sequence
    total = torch.zeros_like(key[..., :1]) if decay is None else decay.cumsum(dim=1)
    between = (total[:, :, None] - total[:, None]).exp()
    lower = torch.ones(key.shape[1], key.shape[1], dtype=torch.bool, device=key.device).tril()
    new = value
    if beta is not None:
        system = (_meet(key, key, between) * beta[..., None]).masked_fill(~lower, 0.0)  # its diagonal is not read
        seen = (value - (key * total.exp()) @ state) * beta[..., None]
        new = torch.linalg.solve_triangular(system, seen, upper=False, unitriangular=True)
    out = (query * total.exp()) @ state + _meet(query, key, between).masked_fill(~lower, 0.0) @ new
    last = total[:, -1:]
    state = state * last.transpose(1, 2).exp() + (key * (last - total).exp()).transpose(1, 2) @ new
    return out, state


def _meet(left: torch.Tensor, right: torch.Tensor, between: torch.Tensor) -> torch.Tensor:
    """[H, i, j]: left[i] . right[j], decayed from j to i; what j > i would give is not finite and not used."""
    if between.shape[-1] == 1:
        return (left @ right.transpose(1, 2)) * between[..., 0]
    products: torch.Tensor = torch.einsum("hik,hjk,hijk->hij", left, right, between)
    return products


def scan(sequence: Sequence, state: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All tokens of a sequence, in chunks of `size` (0: token by token)."""
    if size == 0:
        return step(sequence, state)
    outputs = []
    for start in range(0, sequence[0].shape[1], size):
        part = tuple(None if each is None else each[:, start:start + size] for each in sequence)
        out, state = chunk(part, state)  # type: ignore[arg-type]
        outputs.append(out)
    return torch.cat(outputs, dim=1) if outputs else sequence[2], state


def run(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor | None, beta: torch.Tensor | None,
    scale: float, state: torch.Tensor | None, cu_seqlens: torch.Tensor | None, size: int, value_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Every sequence by itself: outputs [B, T, H, V] in the value's dtype and states in fp32."""
    heads, group = value.shape[2], value.shape[2] // key.shape[2]
    out = torch.empty_like(value)
    if cu_seqlens is None:
        spans = [(i, 0, value.shape[1]) for i in range(value.shape[0])]
    else:
        ends = torch.tensor([0, *lengths(cu_seqlens, value.shape[1])]).cumsum(0).tolist()
        spans = [(0, start, end) for start, end in pairwise(ends)]
    states = value.new_zeros(len(spans), heads, key.shape[-1], value.shape[-1], dtype=torch.float32)
    if state is not None:
        states.copy_(state.transpose(-1, -2) if value_first else state)
    for n, (row, start, end) in enumerate(spans):
        q, k, v, b = (None if each is None else each[row, start:end].float().transpose(0, 1)
                      for each in (query, key, value, beta))
        assert q is not None and k is not None and v is not None
        q, k = (each.repeat_interleave(group, dim=0) for each in (q * scale, k))
        one, states[n] = scan((q, k, v, _decay(decay, row, start, end), b), states[n], size)
        out[row, start:end] = one.transpose(0, 1).to(out.dtype)
    return out, states.transpose(-1, -2).contiguous() if value_first else states


def _decay(decay: torch.Tensor | None, row: int, start: int, end: int) -> torch.Tensor | None:
    """[H, T, 1 or K] of one sequence."""
    if decay is None:
        return None
    if decay.dim() == 1:
        return decay.float()[:, None, None].expand(-1, end - start, 1)
    one = decay[row, start:end].float().transpose(0, 1)
    return one if one.dim() == 3 else one[..., None]


def unit(x: torch.Tensor) -> torch.Tensor:
    """x / sqrt(sum(x ** 2) + 1e-6) over the last axis, in fp32, and back to its dtype."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).sum(-1, keepdim=True) + 1e-6)).to(x.dtype)


def gate(raw: torch.Tensor, a_log: torch.Tensor | None, bias: torch.Tensor | None, bound: float | None) -> torch.Tensor:
    """Log decay from what a projection gives, fp32, same shape: -exp(a_log) * softplus(raw + bias), or
    bound * sigmoid(exp(a_log) * (raw + bias)). `raw` [..., H] or [..., H, K], `a_log` of H values, `bias` of as many as
    one token of `raw` has."""
    wide = raw.float()
    tail = raw.shape[-1:] if raw.dim() == 3 else raw.shape[-2:]
    if bias is not None:
        wide = wide + bias.float().reshape(tail)
    rate = 1.0 if a_log is None else a_log.float().exp().reshape(tail[0], *(1,) * (len(tail) - 1))
    return -rate * softplus(wide) if bound is None else bound * torch.sigmoid(rate * wide)


def _state_shape(key: torch.Tensor, value: torch.Tensor, cu_seqlens: torch.Tensor | None,
                 value_first: bool) -> tuple[int, ...]:  # fmt: skip
    sequences = value.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    sides = (value.shape[-1], key.shape[-1]) if value_first else (key.shape[-1], value.shape[-1])
    return (sequences, value.shape[2], *sides)


def _shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seqlens: torch.Tensor | None,
            value_first: bool) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    state = value.new_empty(_state_shape(key, value, cu_seqlens, value_first), dtype=torch.float32)
    return torch.empty_like(value, memory_format=torch.contiguous_format), state


def counted(name: str, key: torch.Tensor, value: torch.Tensor, cu_seqlens: torch.Tensor | None, size: int) -> float:
    """Operations by the definition of operator `name`; token by token is a sequence for each token."""
    definition = OPERATORS.get(name)
    rows = [value.shape[1]] * value.shape[0] if cu_seqlens is None else lengths(cu_seqlens, value.shape[1])
    axes = {"heads": value.shape[2], "head_dim": key.shape[-1], "v_head_dim": value.shape[-1], "chunk": max(size, 1)}
    if size == 0:
        return definition.flops({**axes, "sequences": sum(rows), "tokens": 1})
    return sum(definition.flops({**axes, "sequences": 1, "tokens": tokens}) for tokens in rows if tokens)


@operator(
    "delta_rule(Tensor query, Tensor key, Tensor value, Tensor? decay, Tensor? beta, float scale, Tensor? state, "
    "Tensor? cu_seqlens, int chunk, bool value_first, bool unit, bool raw_decay, Tensor? a_log, Tensor? decay_bias, "
    "float? bound, bool raw_beta, bool negative) -> (Tensor, Tensor)",
    shapes=lambda q, k, v, g, b, scale, state, cu, chunk, value_first, *_: _shapes(q, k, v, cu, value_first),
    flops=lambda q, k, v, g, b, scale, state, cu, chunk, *_: counted("linear_attention", k, v, cu, chunk),
)  # fmt: skip
def delta_rule(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor | None, beta: torch.Tensor | None,
    scale: float, state: torch.Tensor | None, cu_seqlens: torch.Tensor | None, chunk: int, value_first: bool,
    unit: bool, raw_decay: bool, a_log: torch.Tensor | None, decay_bias: torch.Tensor | None, bound: float | None,
    raw_beta: bool, negative: bool,
) -> Any:  # fmt: skip
    """With a correction of what the state held for the key. `unit`: query and key are normalised first; `raw_decay`:
    the decay is `gate`d first; `raw_beta`: a sigmoid comes first, doubled when `negative`. beta None: 1."""
    if unit:
        query, key = _UNIT(query), _UNIT(key)
    if raw_decay and decay is not None:
        decay = gate(decay, a_log, decay_bias, bound)
    if beta is None:
        beta = torch.ones_like(value[..., 0])
    elif raw_beta:
        beta = beta.float().sigmoid() * (2 if negative else 1)
    return run(query, key, value, decay, beta, scale, state, cu_seqlens, chunk, value_first)


_UNIT = unit


@operator(
    "linear_attention(Tensor query, Tensor key, Tensor value, Tensor? decay, float scale, Tensor? state, "
    "Tensor? cu_seqlens, int chunk, bool value_first) -> (Tensor, Tensor)",
    shapes=lambda q, k, v, g, scale, state, cu, chunk, value_first: _shapes(q, k, v, cu, value_first),
    flops=lambda q, k, v, g, scale, state, cu, chunk, *_: counted("gated_linear_attention", k, v, cu, chunk),
)  # fmt: skip
def linear_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor | None, scale: float,
    state: torch.Tensor | None, cu_seqlens: torch.Tensor | None, chunk: int, value_first: bool,
) -> Any:  # fmt: skip
    """Without a correction: state <- exp(decay) * state + key value."""
    return run(query, key, value, decay, None, scale, state, cu_seqlens, chunk, value_first)
