"""Products of several experts' rows and of scaled operands."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dayzero.ops import impl


@pytest.mark.parametrize("transposed", [False, True])
def test_each_row_meets_its_expert(transposed: bool) -> None:
    torch.manual_seed(0)
    a, b, sizes = torch.randn(7, 4), torch.randn(3, 4, 5), torch.tensor([2, 0, 4])
    out = impl.gemm.grouped_gemm(a, b.transpose(1, 2).contiguous() if transposed else b, sizes, transposed)
    expert = [0, 0, 2, 2, 2, 2]
    torch.testing.assert_close(out[:6], torch.stack([a[i] @ b[e] for i, e in enumerate(expert)]))
    assert torch.equal(out[6], torch.zeros(5))
    assert impl.gemm.grouped_gemm(a.to("meta"), b.to("meta"), sizes.to("meta"), False).shape == (7, 5)
    sums = impl.gemm.grouped_gemm_weights(a[:6], out[:6], sizes)
    torch.testing.assert_close(sums[2], a[2:6].T @ out[2:6])
    assert torch.equal(sums[1], torch.zeros(4, 5))


def test_scales_of_blocks_by_hand() -> None:
    """[130, 256] with scales for 128 x 128: the last block has two rows."""
    values = impl.gemm.scaled(torch.ones(130, 256), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert values[0, 0] == 1
    assert values[127, 128] == 2
    assert values[128, 0] == 3
    assert values[129, 255] == 4


def test_scales_that_fit_no_block_and_packed_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="3 scales for 10 values"):
        impl.gemm.scaled(torch.ones(10, 10), torch.ones(3, 10))
    with pytest.raises(ValueError, match="packed as integers"):
        impl.gemm.scaled(torch.ones(10, 10), torch.ones(10, 10, dtype=torch.int32))


def test_a_product_of_scaled_operands() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(3, 128).to(torch.float8_e4m3fn), torch.randn(130, 128).to(torch.float8_e4m3fn)
    a_scale, b_scale = torch.rand(3, 1), torch.rand(2, 1)
    out, more = torch.empty(3, 130, dtype=torch.bfloat16), torch.randn(3, 130)
    impl.gemm.scaled_gemm(a, a_scale, b, b_scale, out, more)
    blocks = torch.cat([b_scale[0].expand(128), b_scale[1].expand(2)])[:, None]
    torch.testing.assert_close(out, ((a.float() * a_scale) @ (b.float() * blocks).T + more).to(torch.bfloat16))


def test_rows_with_the_number_of_their_expert_and_experts_with_a_number_of_rows() -> None:
    torch.manual_seed(0)
    b = torch.randn(2, 6, 4)
    a, groups, out = torch.randn(5, 4), torch.tensor([1, 0, -1, 1, 0]), torch.full((5, 6), 9.0)
    impl.gemm.scaled_grouped_gemm(a, None, b, None, out, groups, 0)
    for i, expert in enumerate(groups.tolist()):
        torch.testing.assert_close(out[i], a[i] @ b[expert].T if expert >= 0 else torch.full((6,), 9.0))
    masked, out = torch.randn(2, 3, 4), torch.full((2, 3, 6), 9.0)
    impl.gemm.scaled_grouped_gemm(masked, None, b, None, out, torch.tensor([1, 3]), 2)
    torch.testing.assert_close(out[1], masked[1] @ b[1].T)
    assert torch.equal(out[0, 1:], torch.full((2, 6), 9.0))


def test_operations() -> None:
    """2 m n k; of experts with room for 3 rows, 2 are expected."""
    a, b, out = (torch.empty(*shape, device="meta") for shape in ((2, 3, 4), (2, 6, 4), (2, 3, 6)))
    with FlopCounterMode(display=False) as counter:
        impl.gemm.scaled_grouped_gemm(a, None, b, None, out, torch.empty(2, device="meta"), 2)
        impl.gemm.scaled_gemm(a[0], None, b[0], None, out[0], None)
        impl.gemm.grouped_gemm(a[0], b, torch.empty(2, device="meta"), True)
    assert counter.get_total_flops() == 2 * 4 * 4 * 6 + 2 * 3 * 4 * 6 + 2 * 3 * 4 * 6
