"""Stand-ins for the helpers around packed sequences (of flash_attn and fla): plain torch code. Without values nothing
is taken to be padding, so that all shapes are known."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad


def tensor_cache(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which keeps its last four results for arguments that are the same objects."""
    kept: deque[tuple[tuple[Any, ...], dict[str, Any], Any]] = deque(maxlen=4)

    @functools.wraps(function)
    def cached(*args: Any, **kwargs: Any) -> Any:
        for old_args, old_kwargs, result in kept:
            if (len(args) == len(old_args) and kwargs.keys() == old_kwargs.keys()
                    and all(a is b for a, b in zip(args, old_args, strict=True))
                    and all(value is old_kwargs[name] for name, value in kwargs.items())):
                return result
        result = function(*args, **kwargs)
        kept.append((args, kwargs, result))
        return result

    return cached


def as_it_is(function: Any = None, **_: Any) -> Any:
    """A decorator, with or without arguments, that changes nothing."""
    return function if callable(function) else as_it_is


def index_first_axis(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows of x [n, ...]."""
    return x.index_select(0, indices)


def _kept(mask: torch.Tensor) -> torch.Tensor:
    """Positions in the flattened mask that are not padding."""
    if mask.device.type == "meta":
        return torch.arange(mask.numel(), device=mask.device)
    return torch.nonzero(mask.flatten()).flatten()


def get_unpad_data(attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Of a mask [B, S]: positions that it keeps, the offsets [B + 1] and the longest length."""
    sizes = prepare_lens_from_mask(attention_mask)
    longest = attention_mask.shape[1] if sizes.device.type == "meta" else int(sizes.max())
    return _kept(attention_mask), prepare_cu_seqlens_from_lens(sizes), longest


def unpad_input(
    hidden_states: torch.Tensor, attention_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Rows of [B, S, ...] that the mask [B, S] keeps, and what `get_unpad_data` says."""
    indices, offsets, longest = get_unpad_data(attention_mask)
    return hidden_states.flatten(0, 1).index_select(0, indices), indices, offsets, longest


def pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """The rows [n, ...] back at their positions in [batch, seqlen, ...], zeros elsewhere."""
    out = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return out.index_copy(0, indices.long(), hidden_states).view(batch, seqlen, *hidden_states.shape[1:])


def fla_pad_input(
    hidden_states: torch.Tensor, indices: torch.Tensor, batch_size: int, seq_len: int
) -> torch.Tensor:
    """The same, other names."""
    return pad_input(hidden_states, indices, batch_size, seq_len)


def prepare_lens(cu_seqlens: torch.Tensor) -> torch.Tensor:
    """Lengths from offsets."""
    return torch.diff(cu_seqlens)


def prepare_lens_from_mask(mask: torch.Tensor) -> torch.Tensor:
    """Lengths from a mask [B, S]."""
    return mask.sum(dim=-1, dtype=torch.int32)


def prepare_cu_seqlens_from_lens(lens: torch.Tensor, dtype: torch.dtype | None = torch.int32) -> torch.Tensor:
    """Offsets from lengths."""
    return pad(lens.cumsum(dim=0, dtype=dtype), (1, 0))


def prepare_cu_seqlens_from_mask(mask: torch.Tensor, dtype: torch.dtype | None = torch.int32) -> torch.Tensor:
    """Offsets from a mask [B, S]."""
    return prepare_cu_seqlens_from_lens(prepare_lens_from_mask(mask), dtype)


def prepare_position_ids(cu_seqlens: torch.Tensor, cu_seqlens_cpu: torch.Tensor | None = None) -> torch.Tensor:
    """Position of each token in its sequence; needs values."""
    sizes = torch.diff(cu_seqlens)
    starts = torch.repeat_interleave(cu_seqlens[:-1], sizes)
    return torch.arange(len(starts), device=cu_seqlens.device, dtype=cu_seqlens.dtype) - starts


def prepare_sequence_ids(cu_seqlens: torch.Tensor, cu_seqlens_cpu: torch.Tensor | None = None) -> torch.Tensor:
    """Number of each token's sequence; needs values."""
    return torch.repeat_interleave(torch.arange(len(cu_seqlens) - 1, device=cu_seqlens.device), torch.diff(cu_seqlens))


def prepare_token_indices(cu_seqlens: torch.Tensor, cu_seqlens_cpu: torch.Tensor | None = None) -> torch.Tensor:
    """Both for each token: [total, 2]."""
    return torch.stack([prepare_sequence_ids(cu_seqlens), prepare_position_ids(cu_seqlens)], 1).to(cu_seqlens)


def prepare_chunk_indices(
    cu_seqlens: torch.Tensor, chunk_size: int, cu_seqlens_cpu: torch.Tensor | None = None
) -> torch.Tensor:
    """Sequence and number in it of each chunk: [chunks, 2]; needs values."""
    return prepare_token_indices(prepare_chunk_offsets(cu_seqlens, chunk_size)).to(cu_seqlens)


def prepare_chunk_offsets(cu_seqlens: torch.Tensor, chunk_size: int) -> torch.Tensor:
    """Chunks before each sequence: [n + 1]."""
    counts = (torch.diff(cu_seqlens) + (chunk_size - 1)).div(chunk_size, rounding_mode="floor")
    return pad(counts, (1, 0)).cumsum(-1)
