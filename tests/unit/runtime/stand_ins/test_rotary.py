"""The forms of rotary embedding."""

import torch

from dayzero.runtime.stand_ins import rotary


def test_in_place_and_packed() -> None:
    torch.manual_seed(0)
    angles = torch.rand(9, 3)
    cos, sin = angles.cos(), angles.sin()
    q, kv = torch.randn(2, 5, 4, 8), torch.randn(2, 5, 2, 4, 8)
    expected_q, expected_k = (rotary.apply_rotary_emb(x, cos, sin, seqlen_offsets=2) for x in (q, kv[:, :, 0]))
    qkv = torch.stack([q, kv[:, :, 0], kv[:, :, 1]], 2)
    out = rotary.apply_rotary_emb_qkv_(qkv, cos, sin, seqlen_offsets=2)
    assert out is qkv
    torch.testing.assert_close(out, torch.stack([expected_q, expected_k, kv[:, :, 1]], 2))
    grouped = torch.cat([q, kv[:, :, 0, :2], kv[:, :, 1, :2]], 2)
    rotary.apply_rotary_emb_qkv_(grouped, cos, sin, seqlen_offsets=2, num_heads_q=4)
    torch.testing.assert_close(grouped, torch.cat([expected_q, expected_k[:, :, :2], kv[:, :, 1, :2]], 2))
    same = rotary.apply_rotary_emb_kv_(kv, cos, sin, seqlen_offsets=2)
    assert same is kv
    torch.testing.assert_close(kv[:, :, 0], expected_k)


def test_modules_make_their_tables() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(1, 5, 2, 8), torch.randn(1, 5, 2, 8)
    angles = torch.outer(torch.arange(8.0), 100.0 ** (-torch.arange(0, 6, 2) / 6))
    expected = [rotary.apply_rotary_emb(x, angles.cos(), angles.sin(), seqlen_offsets=3) for x in (q, k)]
    torch.testing.assert_close(list(rotary.FlaRotaryEmbedding(6, 100.0)(q, k, seqlen_offset=3)), expected)
    ends = torch.tensor([0, 2, 5])
    packed = rotary.FlaRotaryEmbedding(6, 100.0)(q, k, cu_seqlens=ends, max_seqlen=3)[0]
    torch.testing.assert_close(packed[0, 2:], rotary.apply_rotary_emb(q[:, 2:], angles.cos(), angles.sin())[0])
    flash = rotary.FlashRotaryEmbedding(6, 100.0)
    turned_q, kv = flash(q.clone(), torch.stack([k, k], 2), seqlen_offset=torch.tensor([3]))
    torch.testing.assert_close([turned_q, kv[:, :, 0]], expected)
    torch.testing.assert_close(flash(torch.stack([q, k, k], 2), seqlen_offset=3)[:, :, 1], expected[1])
