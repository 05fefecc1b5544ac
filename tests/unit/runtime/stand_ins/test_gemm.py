"""The forms of matrix products and of gated feed-forwards."""

from types import SimpleNamespace

import torch
from torch.nn.functional import silu

from dayzero.runtime.stand_ins import gemm


def test_plain_scaled_and_older_names() -> None:
    torch.manual_seed(0)
    a, b, scale = torch.randn(3, 128), torch.randn(5, 128), torch.rand(3, 1)
    outs = [torch.empty(3, 5) for _ in range(3)]
    gemm.gemm_nt(a, b, outs[0])
    gemm.gemm_nt((a, scale), (b, torch.full((1, 1), 2.0)), outs[1], c=torch.ones(3, 5))
    gemm.gemm_nt_legacy((a, scale), (b, torch.full((1, 1), 2.0)), outs[2])
    torch.testing.assert_close(outs[0], a @ b.T)
    torch.testing.assert_close(outs[1], 2 * scale * (a @ b.T) + 1)
    torch.testing.assert_close(outs[2], 2 * scale * (a @ b.T))


def test_experts() -> None:
    torch.manual_seed(0)
    a, b, experts = torch.randn(4, 8), torch.randn(2, 6, 8), torch.tensor([0, 0, 0, 1])
    outs = [torch.zeros(4, 6) for _ in range(2)]
    gemm.m_grouped_contiguous(a, b, outs[0], experts)
    gemm.m_grouped_contiguous_legacy(a, b, outs[1], experts)
    expected = gemm.gmm(a, b, torch.tensor([3, 1]), trans_b=True)
    for out in outs:
        torch.testing.assert_close(out, expected)
    kept = torch.empty(4, 6)
    assert gemm.gmm_backend(a, b, torch.tensor([3, 1]), False, True, kept) is kept
    torch.testing.assert_close(gemm.gmm_backend(a, expected, torch.tensor([3, 1]), True)[0], a[:3].T @ expected[:3])
    rows, masked = torch.randn(2, 3, 8), [torch.zeros(2, 3, 6) for _ in range(2)]
    gemm.m_grouped_masked(rows, b, masked[0], torch.tensor([2, 3]), 2)
    gemm.m_grouped_masked_legacy(rows, b, masked[1], torch.tensor([2, 3]), 2)
    for out in masked:
        torch.testing.assert_close(out[0, :2], rows[0, :2] @ b[0].T)
        assert not out[0, 2].any()


def test_gated_feed_forwards() -> None:
    torch.manual_seed(0)
    mlp, x = gemm.SwiGLUMLP(SimpleNamespace(hidden_size=4, intermediate_size=6)), torch.randn(3, 4)
    gate, up, down = (getattr(mlp, f"{name}_proj").weight for name in ("gate", "up", "down"))
    expected = (silu(x @ gate.T) * (x @ up.T)) @ down.T
    torch.testing.assert_close(mlp(x), expected)
    torch.testing.assert_close(gemm.xformers_swiglu(x, gate, None, up, None, down, None), expected)
    torch.testing.assert_close(gemm.swiglu_linear(x @ gate.T, x @ up.T, down, None), expected)


def test_sizes() -> None:
    assert [gemm.ceil_div(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [gemm.next_power_of_2(n) for n in (1, 2, 3, 8, 9)] == [1, 2, 4, 8, 16]
