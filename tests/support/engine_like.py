"""A model written as serving engines write theirs: fused projections, norms that add the residual, layers that hand it
on apart, attention as a module that takes rotated queries and keys, arguments of other names. Weights are a Llama's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Norm(nn.Module):
    """RMS norm, of a sum when a residual is given."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.weight, self.epsilon = theirs.weight, theirs.variance_epsilon

    def forward(self, x: Any, residual: Any = None) -> Any:
        """The normed values, and the sum where there was one."""
        total = x if residual is None else x + residual
        normed = self.weight * (total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + self.epsilon))
        return normed if residual is None else (normed, total)


class Fused(nn.Module):
    """Several linear layers as one."""

    def __init__(self, *theirs: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat([each.weight for each in theirs]).detach())

    def forward(self, input_: Any) -> Any:
        """And a bias that is not there."""
        return functional.linear(input_, self.weight), None


class Attention(nn.Module):
    """Of flat queries, keys and values."""

    def __init__(self, heads: int, keys: int, size: int) -> None:
        super().__init__()
        self.heads, self.keys, self.size = heads, keys, size

    def forward(self, query: Any, key: Any, value: Any) -> Any:
        """[tokens, heads x size]"""
        q, k, v = (each.view(len(each), count, self.size).transpose(0, 1) for each, count in
                   ((query, self.heads), (key, self.keys), (value, self.keys)))
        k, v = (each.repeat_interleave(self.heads // self.keys, 0) for each in (k, v))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1)


class SelfAttention(nn.Module):
    """`stride`: of how many the position of each next token is ahead; 1 is right."""

    def __init__(self, theirs: Any, config: Any, stride: int) -> None:
        super().__init__()
        self.size, self.stride = theirs.head_dim, stride
        self.sizes = [each.weight.shape[0] for each in (theirs.q_proj, theirs.k_proj, theirs.v_proj)]
        self.qkv_proj = Fused(theirs.q_proj, theirs.k_proj, theirs.v_proj)
        self.attn = Attention(config.num_attention_heads, config.num_key_value_heads, self.size)
        self.o_proj = Fused(theirs.o_proj)
        self.base = config.rope_parameters["rope_theta"]

    def _rotated(self, flat: Any, positions: Any) -> Any:
        x = flat.view(len(flat), -1, self.size)
        angles = positions[:, None] / self.base ** (torch.arange(0, self.size, 2) / self.size)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        one, other = x.chunk(2, -1)
        return torch.cat((one * cos - other * sin, other * cos + one * sin), -1).flatten(1)

    def forward(self, positions: Any, hidden_states: Any) -> Any:
        """[tokens, hidden size]"""
        q, k, v = self.qkv_proj(hidden_states)[0].split(self.sizes, -1)
        return self.o_proj(self.attn(self._rotated(q, positions), self._rotated(k, positions * self.stride), v))[0]


class FeedForward(nn.Module):
    """Gate and up as one."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = Fused(theirs.gate_proj, theirs.up_proj), Fused(theirs.down_proj)

    def forward(self, x: Any) -> Any:
        """[tokens, hidden size]"""
        gate, up = self.gate_up_proj(x)[0].chunk(2, -1)
        return self.down_proj(functional.silu(gate) * up)[0]


class Layer(nn.Module):
    """Gives what its last block adds, and the residual."""

    def __init__(self, theirs: Any, config: Any, stride: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = SelfAttention(theirs.self_attn, config, stride), FeedForward(theirs.mlp)
        self.input_layernorm = Norm(theirs.input_layernorm)
        self.post_attention_layernorm = Norm(theirs.post_attention_layernorm)

    def forward(self, positions: Any, hidden_states: Any, residual: Any) -> Any:
        """(addend, residual)"""
        if residual is None:
            residual, hidden_states = hidden_states, self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states, residual = self.post_attention_layernorm(self.self_attn(positions, hidden_states), residual)
        return self.mlp(hidden_states), residual


class Decoder(nn.Module):
    """Tokens in one row, without a batch."""

    def __init__(self, theirs: Any, stride: int) -> None:
        super().__init__()
        self.embed_tokens, self.norm = theirs.embed_tokens, Norm(theirs.norm)
        self.layers = nn.ModuleList(Layer(each, theirs.config, stride) for each in theirs.layers)

    def forward(self, input_ids: Any, positions: Any) -> Any:
        """[tokens, hidden size]"""
        hidden_states, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        return self.norm(hidden_states, residual)[0]


class EngineLike(nn.Module):
    """`theirs`: a LlamaForCausalLM."""

    def __init__(self, theirs: Any, stride: int = 1) -> None:
        super().__init__()
        self.model, self.config = Decoder(theirs.model, stride), theirs.config

    def forward(self, input_ids: Any, positions: Any) -> Any:
        """Hidden states; logits are made elsewhere."""
        return self.model(input_ids, positions)
