"""The library's functions for masks, called in the earlier way: the same masks as in the present one."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
masking = pytest.importorskip("transformers.masking_utils")
from transformers import DynamicCache, LlamaConfig  # noqa: E402

from dayzero.runtime.own_code.masks import earlier  # noqa: E402

MAKE = earlier(masking.create_causal_mask)


class OwnCache:
    """Tells sizes by positions, as caches of shipped code do."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 2

    def get_mask_sizes(self, cache_position: Any, layer_idx: int) -> tuple[int, int]:
        return cache_position.shape[0] + 2, 0


def config() -> LlamaConfig:
    return LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, attn_implementation="eager")


def test_earlier_names_and_order_give_the_same_mask() -> None:
    x, ones = torch.zeros(1, 3, 8), torch.tensor([[0, 1, 1, 1, 1]])
    cache = DynamicCache()
    cache.update(torch.zeros(1, 2, 2, 4), torch.zeros(1, 2, 2, 4), 0)
    now = masking.create_causal_mask(config(), x, ones, cache)
    positions = torch.arange(2, 5)
    named = MAKE(config=config(), input_embeds=x, attention_mask=ones, cache_position=positions, past_key_values=cache)
    placed = MAKE(config(), x, ones, positions, cache, None)
    assert now.shape == (1, 1, 3, 5) and torch.equal(now, named) and torch.equal(now, placed)
    assert torch.equal(now, MAKE(config=config(), inputs_embeds=x, attention_mask=ones, cache=cache))


def test_a_cache_of_its_own_making_is_asked_in_the_earlier_way() -> None:
    mask = MAKE(config=config(), input_embeds=torch.zeros(1, 3, 8), attention_mask=None,
                cache_position=torch.arange(2, 5), past_key_values=OwnCache())
    assert (mask[0, 0] == 0).int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


def test_a_cache_of_the_librarys_kind_that_overrides_a_method_in_the_earlier_way() -> None:
    class Own(DynamicCache):
        def get_mask_sizes(self, cache_position: Any, layer_idx: int = 0) -> tuple[int, int]:
            return len(cache_position) + 2, 0

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return 2

    x = torch.zeros(1, 3, 8)
    mask = MAKE(config(), x, torch.ones(1, 5, dtype=torch.int64), torch.arange(2, 5), Own())
    assert mask.shape == (1, 1, 3, 5)
