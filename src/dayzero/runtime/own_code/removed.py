"""Functions that the library of models had in earlier versions, written anew for code that still calls them.

Which name gets which is in data/supplied.toml. Only called from shipped code, in a confined process. Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

NOTHING, NO, YES = None, False, True
"""Values that every config had where it did not state another."""


def is_torch_fx_available() -> bool:
    """Asked before functions are marked for torch.fx, which every supported torch has."""
    return True


def default_rope(config: Any, device: Any = None, seq_len: int | None = None, **_kwargs: Any
                 ) -> tuple[torch.Tensor, float]:
    """Rotary frequencies without scaling [rotated / 2], and the factor 1 for their cosines and sines."""
    table = getattr(config, "rope_parameters", None) or {}
    base = table.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0
    share = table.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1.0
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = int(head * share)
    positions = torch.arange(0, width, 2, dtype=torch.int64).to(device=device, dtype=torch.float)
    return 1.0 / (base ** (positions / width)), 1.0


def causal_mask(attention_mask: torch.Tensor | None, input_shape: Any, inputs_embeds: torch.Tensor,
                past_key_values_length: int, sliding_window: int | None = None) -> torch.Tensor:
    """What is added to scores [batch, 1, new tokens, all tokens]: 0 where a token may look, the least value elsewhere.

    `attention_mask` [batch, all tokens] is 0 for padding; `input_shape` is (batch, new tokens).
    """
    batch, new = int(input_shape[0]), int(input_shape[-1])
    total = new + past_key_values_length
    if attention_mask is not None and attention_mask.dim() == 4:
        return _added(attention_mask.to(torch.bool), inputs_embeds.dtype)
    here = torch.arange(past_key_values_length, total, device=inputs_embeds.device)[:, None]
    there = torch.arange(total, device=inputs_embeds.device)[None, :]
    allowed = there <= here
    if sliding_window is not None:
        allowed = allowed & (there > here - sliding_window)
    allowed = allowed[None, None].expand(batch, 1, new, total)
    if attention_mask is not None:
        allowed = allowed & attention_mask.to(torch.bool)[:, None, None, :]
    return _added(allowed, inputs_embeds.dtype)


def causal_mask_for_sdpa(attention_mask: torch.Tensor | None, input_shape: Any, inputs_embeds: torch.Tensor,
                         past_key_values_length: int, sliding_window: int | None = None) -> torch.Tensor | None:
    """The same; None where torch's attention makes the causal mask itself: no padding is stated and all tokens are
    new, or there is one new token."""
    new = int(input_shape[-1])
    if attention_mask is None and sliding_window is None and (new == 1 or past_key_values_length == 0):
        return None
    return causal_mask(attention_mask, input_shape, inputs_embeds, past_key_values_length, sliding_window)


def full_mask(mask: torch.Tensor, dtype: torch.dtype, tgt_len: int | None = None) -> torch.Tensor:
    """What is added to scores [batch, 1, `tgt_len` or all, all]; `mask` [batch, all] is 0 for padding."""
    batch, source = mask.shape
    return _added(mask.to(torch.bool)[:, None, None, :].expand(batch, 1, tgt_len or source, source), dtype)


def _added(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    zeros = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return zeros.masked_fill(~allowed, torch.finfo(dtype).min)


class AttentionMaskConverter:
    """The part of that class that is called by itself."""

    @staticmethod
    def _unmask_unattended(expanded_mask: torch.Tensor, min_dtype: float) -> torch.Tensor:
        """Rows [.., rows, columns] that are masked altogether may look everywhere: their softmax is then defined."""
        return expanded_mask.mul(~torch.all(expanded_mask == min_dtype, dim=-1, keepdim=True))


def usable_length(self: Any, new_seq_length: int, layer_idx: int = 0) -> int:
    """Tokens in a cache that can grow without end: all that it has."""
    return int(self.get_seq_length(layer_idx))


@property  # type: ignore[misc]
def seen_tokens(self: Any) -> int:
    """Tokens in the cache."""
    return int(self.get_seq_length())


@classmethod  # type: ignore[misc]
def from_legacy_cache(cls: Any, past_key_values: Any = None) -> Any:
    """A cache from a tuple of (key, value) for each layer; None: an empty one."""
    cache = cls()
    for layer, (key, value) in enumerate(past_key_values or ()):
        cache.update(key, value, layer)
    return cache


def to_legacy_cache(self: Any) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """A tuple of (key, value) for each layer."""
    return tuple(zip(key_cache.__get__(self), value_cache.__get__(self), strict=True))


@property  # type: ignore[misc]
def use_return_dict(self: Any) -> bool:
    """Whether results are named."""
    return bool(self.return_dict)


def get_max_length(self: Any) -> int | None:
    """The most tokens that a cache can hold; None where there is no limit."""
    most = getattr(self, "max_cache_len", None)
    return most if most is not None and most > 0 else None


def get_head_mask(self: Any, head_mask: torch.Tensor | None, num_hidden_layers: int,
                  is_attention_chunked: bool = False) -> Any:
    """What the probabilities of each layer are multiplied with: None, or [layers, batch, heads, 1, 1]."""
    if head_mask is None:
        return [None] * num_hidden_layers
    mask = head_mask if head_mask.dim() > 1 else head_mask.expand(num_hidden_layers, -1)
    mask = mask[:, None, :, None, None].to(self.dtype)
    return mask.unsqueeze(-1) if is_attention_chunked else mask


def invert_attention_mask(self: Any, encoder_attention_mask: torch.Tensor) -> torch.Tensor:
    """What is added to scores [batch, 1, 1 or queries, keys]; the mask [batch, (queries,) keys] is 0 for padding."""
    mask = encoder_attention_mask
    return _added((mask[:, None] if mask.dim() == 3 else mask[:, None, None]).to(torch.bool), self.dtype)


def padding(mask: torch.Tensor, tgt_length: int | None = None) -> torch.Tensor:
    """Where there is padding [batch, 1, `tgt_length` or all, all]; `mask` [batch, all] is 0 there."""
    batch, source = mask.shape
    return ~mask.to(torch.bool)[:, None, None, :].expand(batch, 1, tgt_length or source, source)


def future(input_ids_shape: Any, device: Any, past_key_values_length: int) -> torch.Tensor:
    """Where a token may not look [batch, 1, new, past + new]; `input_ids_shape` is (batch, new)."""
    batch, new = input_ids_shape
    here = torch.arange(past_key_values_length, past_key_values_length + new, device=device)[:, None]
    there = torch.arange(past_key_values_length + new, device=device)[None]
    return (there > here)[None, None].expand(batch, 1, new, past_key_values_length + new)


def triangle(input_ids_shape: Any, dtype: torch.dtype, device: Any = None, past_key_values_length: int = 0
             ) -> torch.Tensor:
    """What is added to scores [batch, 1, new, past + new]; `input_ids_shape` is (batch, new)."""
    return _added(~future(input_ids_shape, device, past_key_values_length), dtype)


class _OfCache:
    """What a cache had beside its layers. A class with an `update` of its own keeps it itself: it gets an empty one."""

    def __init__(self, name: str, empty: Callable[[], Any], of: Callable[[Any], Any]) -> None:
        self._name, self._empty, self._of = name, empty, of

    def __get__(self, cache: Any, owner: Any = None) -> Any:
        from transformers import Cache

        if cache is None:
            return self
        own = next(base for base in type(cache).__mro__ if "update" in vars(base))
        if own.__module__.partition(".")[0] == Cache.__module__.partition(".")[0]:
            return self._of(cache)
        return vars(cache).setdefault(self._name, self._empty())


key_cache = _OfCache("key_cache", list, lambda cache: [layer.keys for layer in cache.layers])
value_cache = _OfCache("value_cache", list, lambda cache: [layer.values for layer in cache.layers])
counted_tokens = _OfCache("_seen_tokens", int, lambda cache: int(cache.get_seq_length()))
