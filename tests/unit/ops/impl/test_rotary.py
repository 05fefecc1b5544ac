"""Rotation of pairs, by complex numbers."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dayzero.ops import impl


def tables(rows: int, half: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.arange(rows)[:, None] * torch.tensor([1.0, 0.3, 0.05])[:half]
    return angles.cos(), angles.sin()


@pytest.mark.parametrize("interleaved", [False, True])
def test_pairs_are_turned_and_the_rest_stays(interleaved: bool) -> None:
    torch.manual_seed(0)
    x, (cos, sin) = torch.randn(2, 4, 3, 8), tables(9, 3)
    out = impl.rotary.rotary(x, cos, sin, torch.tensor([1, 5]), 0, None, interleaved)
    pairs = (x[..., 0:6:2], x[..., 1:6:2]) if interleaved else (x[..., :3], x[..., 3:6])
    for b, start in enumerate((1, 5)):
        turn = torch.complex(cos, sin)[start:start + 4, None]
        turned = torch.complex(pairs[0][b], pairs[1][b]) * turn
        got = (out[b, ..., 0:6:2], out[b, ..., 1:6:2]) if interleaved else (out[b, ..., :3], out[b, ..., 3:6])
        torch.testing.assert_close(torch.complex(*got), turned)
    assert torch.equal(out[..., 6:], x[..., 6:])
    assert impl.rotary.rotary(x.to("meta"), cos.to("meta"), sin.to("meta"), None, 3, None, interleaved).shape == x.shape


def test_packed_sequences_start_anew() -> None:
    torch.manual_seed(0)
    x, (cos, sin) = torch.randn(7, 2, 6), tables(9, 3)
    out = impl.rotary.rotary(x, cos, sin, None, 2, torch.tensor([0, 3, 7]), False)
    for rows in (slice(0, 3), slice(3, 7)):
        torch.testing.assert_close(out[rows], impl.rotary.rotary(x[None, rows], cos, sin, None, 2, None, False)[0])


def test_operations_by_hand() -> None:
    """3 for each of the 6 values that turn, 2 * 4 tokens, 3 heads; 2 for each of 4 taps of a convolution."""
    x, cos = torch.empty(2, 4, 3, 8, device="meta"), torch.empty(9, 3, device="meta")
    with FlopCounterMode(display=False) as counter:
        impl.rotary.rotary(x, cos, cos, None, 0, None, False)
        impl.convolution.convolution(x[:, :, 0], torch.empty(8, 4, device="meta"), None, None, None, None, "", 3)
    assert counter.get_total_flops() == 3 * 6 * 2 * 4 * 3 + 2 * 4 * 2 * 4 * 8
