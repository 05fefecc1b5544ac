"""Functions that the library had earlier: the same results, against values by hand and the library's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from dayzero.runtime.own_code import removed  # noqa: E402

LEAST = torch.finfo(torch.float32).min


def allowed(mask: torch.Tensor) -> list[list[int]]:
    assert set(mask.unique().tolist()) <= {0.0, LEAST}
    return (mask[0, 0] == 0).int().tolist()


def test_a_causal_mask_with_a_cache() -> None:
    mask = removed.causal_mask(None, (1, 2), torch.zeros(1, 2, 4), 1)
    assert allowed(mask) == [[1, 1, 0], [1, 1, 1]]


def test_a_causal_mask_with_padding_and_a_window() -> None:
    padding = torch.tensor([[0, 1, 1, 1]])
    assert allowed(removed.causal_mask(padding, (1, 4), torch.zeros(1, 4, 4), 0)) == [
        [0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]]
    assert allowed(removed.causal_mask(None, (1, 4), torch.zeros(1, 4, 4), 0, sliding_window=2)) == [
        [1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


def test_no_mask_where_attention_makes_it() -> None:
    x = torch.zeros(1, 3, 4)
    assert removed.causal_mask_for_sdpa(None, (1, 3), x, 0) is None
    assert removed.causal_mask_for_sdpa(None, (1, 1), x[:, :1], 5) is None
    assert allowed(removed.causal_mask_for_sdpa(None, (1, 2), x[:, :2], 1)) == [[1, 1, 0], [1, 1, 1]]
    assert removed.causal_mask_for_sdpa(torch.ones(1, 3), (1, 3), x, 0).shape == (1, 1, 3, 3)


def test_a_mask_of_padding() -> None:
    mask = removed.full_mask(torch.tensor([[1, 0]]), torch.float32, tgt_len=3)
    assert allowed(mask) == [[1, 0], [1, 0], [1, 0]]


def test_rows_that_are_masked_altogether_are_opened() -> None:
    rows = torch.tensor([[[[LEAST, LEAST], [0.0, LEAST]]]])
    opened = removed.AttentionMaskConverter._unmask_unattended(rows, LEAST)
    assert opened.tolist() == [[[[0.0, 0.0], [0.0, LEAST]]]]


def test_rotary_frequencies() -> None:
    # 1 / base^(2i / width): width 4 of a head of 8 that is rotated by half, base 100.
    config = SimpleNamespace(rope_theta=100.0, head_dim=8, partial_rotary_factor=0.5)
    frequencies, factor = removed.default_rope(config)
    assert torch.allclose(frequencies, torch.tensor([1.0, 0.1])) and factor == 1.0
    table = SimpleNamespace(rope_parameters={"rope_theta": 100.0}, hidden_size=8, num_attention_heads=2)
    assert torch.allclose(removed.default_rope(table)[0], torch.tensor([1.0, 0.1]))


def test_a_cache_in_the_earlier_way() -> None:
    transformers = pytest.importorskip("transformers")
    kind = type("Cache", (transformers.DynamicCache,), {
        "from_legacy_cache": removed.from_legacy_cache, "to_legacy_cache": removed.to_legacy_cache,
        "get_usable_length": removed.usable_length, "seen_tokens": removed.seen_tokens})
    pair = (torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    cache = kind.from_legacy_cache((pair, pair))
    assert cache.get_usable_length(7) == cache.seen_tokens == 3 and kind.from_legacy_cache().seen_tokens == 0
    assert all(torch.equal(a, b) for layer in cache.to_legacy_cache() for a, b in zip(layer, pair, strict=True))


def test_masks_of_before_version_4_35() -> None:
    assert removed.padding(torch.tensor([[1, 0]]), 2).tolist() == [[[[False, True], [False, True]]]]
    future = removed.future((1, 2), "cpu", 1)
    assert future.tolist() == [[[[False, False, True], [False, False, False]]]]
    assert allowed(removed.triangle((1, 2), torch.float32, "cpu", 1)) == [[1, 1, 0], [1, 1, 1]]


def test_masks_of_heads_and_of_another_model() -> None:
    model = SimpleNamespace(dtype=torch.float32)
    assert removed.get_head_mask(model, None, 3) == [None] * 3
    assert removed.get_head_mask(model, torch.ones(4), 3).shape == (3, 1, 4, 1, 1)
    assert removed.get_head_mask(model, torch.ones(3, 4), 3).shape == (3, 1, 4, 1, 1)
    assert removed.invert_attention_mask(model, torch.tensor([[1, 0]])).tolist() == [[[[0.0, LEAST]]]]
    assert removed.invert_attention_mask(model, torch.ones(1, 5, 2)).shape == (1, 1, 5, 2)


def test_what_a_cache_had_beside_its_layers() -> None:
    transformers = pytest.importorskip("transformers")
    names = {"key_cache": removed.key_cache, "value_cache": removed.value_cache,
             "_seen_tokens": removed.counted_tokens, "to_legacy_cache": removed.to_legacy_cache,
             "get_max_length": removed.get_max_length}

    def update(self, keys, values, layer):
        self.key_cache.append(keys)
        self.value_cache.append(values)
        self._seen_tokens += keys.shape[-2]
        return self.key_cache[layer], values

    plain = type("Plain", (transformers.DynamicCache,), names)
    own = type("Own", (plain,), {"update": update})()
    cache = transformers.DynamicCache()
    cache.__class__ = type("Cache", (transformers.DynamicCache,), names)
    keys = torch.ones(1, 2, 3, 4)
    cache.update(keys, 2 * keys, 0)
    assert torch.equal(cache.key_cache[0], keys) and torch.equal(cache.value_cache[0], 2 * keys)
    assert cache._seen_tokens == 3 and cache.get_max_length() is None
    assert own.value_cache == [] and own.to_legacy_cache() == ()
    own.update(keys, 2 * keys, 0)
    assert len(own.key_cache) == 1 and own._seen_tokens == 3
    assert own.to_legacy_cache() == ((own.key_cache[0], own.value_cache[0]),)
