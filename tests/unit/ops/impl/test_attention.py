"""Attention against the library's own, against hand-computed values, and shapes without values against real ones."""

from math import inf, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from dayzero.ops import impl
from dayzero.ops.impl.attention import attend

FREE = (False, -1, -1, 0.0, None)


def qkv(batch: int, tokens: int, keys: int, heads: int, groups: int, dim: int, v_dim: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(tokens * 31 + keys)
    return (torch.randn(batch, tokens, heads, dim), torch.randn(batch, keys, groups, dim),
            torch.randn(batch, keys, groups, v_dim))  # fmt: skip


def mask(tokens: int, keys: int, left: int, right: int) -> torch.Tensor:
    """Which keys a query sees, written as a loop."""
    seen = torch.zeros(tokens, keys, dtype=torch.bool)
    for i in range(tokens):
        for j in range(keys):
            behind = i + keys - tokens - j
            seen[i, j] = (left < 0 or behind <= left) and (right < 0 or -behind <= right)
    return seen


@settings(max_examples=40, deadline=None)
@given(batch=st.integers(1, 2), tokens=st.integers(1, 6), more=st.integers(0, 5), groups=st.integers(1, 2),
       share=st.integers(1, 3), v_dim=st.integers(1, 5), causal=st.booleans(), left=st.integers(-1, 4),
       right=st.integers(-1, 3))  # fmt: skip
def test_it_is_masked_attention_and_its_shapes_are_known_without_values(
    batch: int, tokens: int, more: int, groups: int, share: int, v_dim: int, causal: bool, left: int, right: int
) -> None:
    q, k, v = qkv(batch, tokens, tokens + more, groups * share, groups, 4, v_dim)
    out, lse = impl.attention.attention(q, k, v, 0.3, causal, left, right, 0.0, None)
    seen = mask(tokens, tokens + more, left, 0 if causal else right)
    expected = scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2).repeat_interleave(share, 1), v.transpose(1, 2).repeat_interleave(share, 1),
        seen, scale=0.3)  # fmt: skip
    torch.testing.assert_close(out.transpose(1, 2), expected, atol=1e-5, rtol=1e-5)
    empty = impl.attention.attention(q.to("meta"), k.to("meta"), v.to("meta"), 0.3, causal, left, right, 0.0, None)
    assert [(e.shape, e.dtype) for e in empty] == [(out.shape, out.dtype), (lse.shape, lse.dtype)]


def test_a_query_that_sees_nothing_gives_zeros() -> None:
    """Five queries stand at the last two keys: the first three see none (flash-attn 2.1 documents zeros)."""
    q, k, v = qkv(1, 5, 2, 1, 1, 4, 4)
    out, lse = attend(q, k, v, 0.5, True, -1, -1, 0.0, None)
    assert torch.equal(out[0, :3], torch.zeros(3, 1, 4))
    assert lse[0, 0, :3].tolist() == [inf] * 3
    torch.testing.assert_close(out[0, 3, 0], v[0, 0, 0])


def test_the_denominator_by_hand() -> None:
    """Scores 0 and ln 3: the denominator is 4, the weights 1/4 and 3/4."""
    q = torch.tensor([[[[1.0]]]])
    k, v = torch.tensor([[[[0.0]], [[log(3.0)]]]]), torch.tensor([[[[4.0]], [[8.0]]]])
    out, lse = attend(q, k, v, 1.0, *FREE)
    assert out.item() == pytest.approx(7.0)
    assert lse.item() == pytest.approx(log(4.0))


def test_softcap_and_alibi_by_hand() -> None:
    """Scores 2 and 6 capped at 3, less a slope of 0.5 for one token of distance."""
    q = torch.tensor([[[[2.0]]]])
    k, v = torch.tensor([[[[1.0]], [[3.0]]]]), torch.tensor([[[[1.0]], [[0.0]]]])
    out, _ = attend(q, k, v, 1.0, True, -1, -1, 3.0, torch.tensor([0.5]))
    scores = 3 * torch.tanh(torch.tensor([2.0, 6.0]) / 3) - torch.tensor([0.5, 0.0])
    assert out.item() == pytest.approx(torch.softmax(scores, 0)[0].item(), rel=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_are_each_by_itself(causal: bool) -> None:
    sizes, keys = [3, 1, 5], [4, 1, 7]
    parts = [qkv(1, t, s, 4, 2, 8, 6) for t, s in zip(sizes, keys, strict=True)]
    q, k, v = (torch.cat([part[i][0] for part in parts]) for i in range(3))
    ends = [torch.tensor([0, *torch.tensor(n).cumsum(0).tolist()], dtype=torch.int32) for n in (sizes, keys)]
    out, lse = impl.attention.attention_varlen(q, k, v, *ends, None, 0.4, causal, 2, -1, 0.0, None)
    one = [attend(*part, 0.4, causal, 2, -1, 0.0, None) for part in parts]
    torch.testing.assert_close(out, torch.cat([o[0] for o, _ in one]))
    torch.testing.assert_close(lse, torch.cat([each[0] for _, each in one], dim=1))


def test_packed_sequences_in_blocks() -> None:
    """Two sequences of 5 and 3 keys in blocks of 4 that lie in no order."""
    q, k, v = qkv(1, 8, 8, 2, 1, 4, 4)
    ends = torch.tensor([0, 5, 8], dtype=torch.int32)
    table = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32)
    caches = [torch.zeros(4, 4, 1, 4), torch.zeros(4, 4, 1, 4)]
    for cache, rows in zip(caches, (k, v), strict=True):
        cache[2], cache[0, :1], cache[1, :3] = rows[0, :4], rows[0, 4:5], rows[0, 5:8]
    plain = impl.attention.attention_varlen(q[0], k[0], v[0], ends, ends, None, 0.5, True, -1, -1, 0.0, None)
    paged = impl.attention.attention_varlen(q[0], *caches, ends, ends, table, 0.5, True, -1, -1, 0.0, None)
    torch.testing.assert_close(plain, paged)


@pytest.mark.parametrize("paged", [False, True])
def test_a_cache_is_extended_in_place(paged: bool) -> None:
    q, k, v = qkv(2, 2, 2, 4, 2, 8, 8)
    old_k, old_v = torch.randn(2, 6, 2, 8), torch.randn(2, 6, 2, 8)
    filled = torch.tensor([3, 1], dtype=torch.int32)
    if paged:
        table = torch.tensor([[1, 0], [3, 2]], dtype=torch.int32)
        caches = [torch.zeros(4, 3, 2, 8), torch.zeros(4, 3, 2, 8)]
        for cache, old in zip(caches, (old_k, old_v), strict=True):
            for i in range(2):
                cache[table[i].long()] = old[i].view(2, 3, 2, 8)
    else:
        table, caches = None, [old_k.clone(), old_v.clone()]
    out, _ = impl.attention.attention_cached(q, *caches, k, v, filled, None, table, 0.3, True, -1, -1, 0.0, None)
    for i, before in enumerate(filled.tolist()):
        keys = torch.cat([old_k[i, :before], k[i]])
        values = torch.cat([old_v[i, :before], v[i]])
        expected, _ = attend(q[i:i + 1], keys[None], values[None], 0.3, True, -1, -1, 0.0, None)
        torch.testing.assert_close(out[i], expected[0])
        row = caches[0][i] if table is None else caches[0][table[i].long()].flatten(0, 1)
        torch.testing.assert_close(row[before:before + 2], k[i])


def test_latents_are_key_and_value_of_all_heads() -> None:
    torch.manual_seed(0)
    q, cache = torch.randn(2, 1, 4, 10), torch.randn(5, 3, 1, 10)
    table, filled = torch.tensor([[4, 1], [0, 2]], dtype=torch.int32), torch.tensor([5, 2], dtype=torch.int32)
    out, lse = impl.attention.latent_attention(q, cache, table, filled, 8, 0.25, True)
    for i in range(2):
        rows = cache[table[i].long()].flatten(0, 1)[:int(filled[i])]
        weights = torch.softmax(0.25 * torch.einsum("hd,sd->hs", q[i, 0], rows[:, 0]), -1)
        torch.testing.assert_close(out[i, 0], weights @ rows[:, 0, :8])
    assert lse.shape == (2, 4, 1)
    empty = impl.attention.latent_attention(q.to("meta"), cache.to("meta"), table.to("meta"), None, 8, 0.25, True)
    assert empty[0].shape == out.shape


def counted(call: object) -> int:
    with FlopCounterMode(display=False) as counter:
        call()  # type: ignore[operator]
    return counter.get_total_flops()


def test_operations_by_hand() -> None:
    """2 * batch * heads * (8 + 6) for each pair: 4 queries that see 3, 4, 5, 6 keys are 18 pairs, all of 6 are 24, the
    last two at most are 8."""
    q, k, v = qkv(2, 4, 6, 3, 1, 8, 6)
    for options, pairs in (((True, -1, -1), 18), ((False, -1, -1), 24), ((True, 1, -1), 8)):
        done = counted(lambda o=options: impl.attention.attention(q, k, v, 1.0, *o, 0.0, None))
        assert done == 2 * 2 * 3 * 14 * pairs


def test_operations_of_packed_sequences_without_values() -> None:
    """Two sequences of 10 tokens in all are taken to be 5 each: 2 * 15 pairs."""
    q = torch.empty(10, 3, 8, device="meta")
    ends = torch.empty(3, dtype=torch.int32, device="meta")
    call = lambda: impl.attention.attention_varlen(q, q, q, ends, ends, None, 1.0, True, -1, -1, 0.0, None)  # noqa: E731
    assert counted(call) == 2 * 3 * 16 * 30
