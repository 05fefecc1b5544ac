"""The forms of fused attention are one attention."""

import pytest
import torch

from dayzero.runtime.stand_ins import attention as flash
from dayzero.runtime.stand_ins.recording import MissingStandIn
from dayzero.runtime.stand_ins.rotary import apply_rotary_emb

ENDS = torch.tensor([0, 4, 6], dtype=torch.int32)


def qkv(batch: int = 2, tokens: int = 6) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(batch, tokens, 4, 8) for _ in range(3))


def test_packed_tensors_are_their_parts() -> None:
    q, k, v = qkv()
    expected = flash.flash_attn_func(q, k, v, causal=True, window_size=(2, 0))
    options = {"causal": True, "window_size": (2, 0)}
    torch.testing.assert_close(flash.flash_attn_kvpacked_func(q, torch.stack([k, v], 2), **options), expected)
    torch.testing.assert_close(flash.flash_attn_qkvpacked_func(torch.stack([q, k, v], 2), **options), expected)
    packed = flash.flash_attn_varlen_func(q[0], k[0], v[0], ENDS, ENDS, 4, 4, **options)
    both, all_three = torch.stack([k[0], v[0]], 1), torch.stack([q[0], k[0], v[0]], 1)
    torch.testing.assert_close(
        flash.flash_attn_varlen_kvpacked_func(q[0], both, ENDS, ENDS, 4, 4, **options), packed)
    torch.testing.assert_close(flash.flash_attn_varlen_qkvpacked_func(all_three, ENDS, 4, **options), packed)


def test_the_scale_is_that_of_the_head_and_probabilities_bring_the_denominator() -> None:
    q, k, v = qkv()
    out, lse, nothing = flash.flash_attn_func(q, k, v, return_attn_probs=True)
    torch.testing.assert_close(out, flash.flash_attn_func(q, k, v, softmax_scale=8**-0.5))
    torch.testing.assert_close(lse, torch.logsumexp(torch.einsum("bthd,bshd->bhts", q, k) * 8**-0.5, -1))
    assert nothing is None


@pytest.mark.parametrize("causal", [False, True])
def test_a_cache_with_rotation_is_rotation_and_attention(causal: bool) -> None:
    """One by one: new keys are turned to their places; queries too when causal, else all stand at the first."""
    q, k, v = qkv(tokens=3)
    torch.manual_seed(1)
    k_cache, v_cache = torch.randn(2, 9, 4, 8), torch.randn(2, 9, 4, 8)
    angles = torch.rand(20, 3)
    cos, sin = angles.cos(), angles.sin()
    filled = torch.tensor([4, 2], dtype=torch.int32)
    before = k_cache.clone(), v_cache.clone()
    out = flash.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cos, sin, filled, causal=causal)
    for i, start in enumerate((4, 2)):
        turned_k = apply_rotary_emb(k[i:i + 1], cos, sin, True, seqlen_offsets=start)
        places = [start, start + 1, start + 2] if causal else [start] * 3
        turned_q = torch.cat([apply_rotary_emb(q[i:i + 1, t:t + 1], cos, sin, True, seqlen_offsets=places[t])
                              for t in range(3)], 1)
        keys = torch.cat([before[0][i:i + 1, :start], turned_k], 1)
        values = torch.cat([before[1][i:i + 1, :start], v[i:i + 1]], 1)
        torch.testing.assert_close(out[i:i + 1], flash.flash_attn_func(turned_q, keys, values, causal=causal))
        torch.testing.assert_close(k_cache[i, start:start + 3], turned_k[0])


def test_a_length_for_all_is_that_of_each() -> None:
    q, k, v = qkv(tokens=1)
    caches = [torch.randn(2, 5, 4, 8) for _ in range(2)]
    one = flash.flash_attn_with_kvcache(q, *(c.clone() for c in caches), k, v, cache_seqlens=3)
    each = flash.flash_attn_with_kvcache(q, *(c.clone() for c in caches), k, v, cache_seqlens=torch.tensor([3, 3]))
    torch.testing.assert_close(one, each)


def test_what_it_does_not_have_is_refused() -> None:
    q, k, v = qkv()
    with pytest.raises(MissingStandIn, match="dropout_p=") as caught:
        flash.flash_attn_func(q, k, v, 0.1)
    assert caught.value.file.endswith("test_attention.py")
    with pytest.raises(MissingStandIn, match="indices="):
        flash.flash_mla_with_kvcache(q, k[:, :, :1], None, None, 4, None, indices=torch.zeros(1))


def test_latent_attention_is_attention_on_the_latents() -> None:
    torch.manual_seed(0)
    q, cache = torch.randn(1, 2, 4, 12), torch.randn(3, 4, 1, 12)
    table, filled = torch.tensor([[2, 0]], dtype=torch.int32), torch.tensor([6], dtype=torch.int32)
    out, _ = flash.flash_mla_with_kvcache(q, cache, table, filled, 8, *flash.get_mla_metadata(), causal=True)
    rows = torch.cat([cache[2], cache[0]])[None, :6]
    torch.testing.assert_close(out, flash.flash_attn_func(q, rows, rows[..., :8], causal=True))


def test_the_third_version_and_another_library_are_the_same_attention() -> None:
    q, k, v = qkv()
    expected, lse, _ = flash.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    third = flash.flash_3_func(q, k, v, None, True, return_attn_probs=True)
    torch.testing.assert_close(third, (expected, lse))
    packed = flash.flash_attn_varlen_func(q[0], k[0], v[0], ENDS, ENDS, 4, 4, causal=True)
    torch.testing.assert_close(flash.flash_3_varlen_func(q[0], k[0], v[0], ENDS, ENDS, 4, 4, causal=True), packed)
    mask = flash.LowerTriangularMask()
    torch.testing.assert_close(flash.memory_efficient_attention(q, k, v, mask), expected)
    bias = torch.full((2, 4, 6, 6), float("-inf")).triu(1)
    torch.testing.assert_close(flash.memory_efficient_attention(q, k, v, bias), expected)
    with pytest.raises(MissingStandIn, match="LowerTriangularMask"):
        flash.memory_efficient_attention(q[:, :2], k, v, mask)
    with pytest.raises(MissingStandIn, match="k_descale="):
        flash.flash_3_func(q, k, v, k_descale=torch.ones(1))
