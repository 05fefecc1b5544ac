"""The short convolution against the library's own, tokens one by one against all at once, packed against single."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import conv1d, silu

from dayzero.ops import impl

conv, update = impl.convolution.convolution, impl.convolution.convolution_update


def test_by_hand() -> None:
    """Taps 1, 10, 100 of inputs 1, 2, 3: the newest has the last tap."""
    x, weight = torch.tensor([[[1.0], [2.0], [3.0]]]), torch.tensor([[1.0, 10.0, 100.0]])
    out, state = conv(x, weight, torch.tensor([0.5]), None, None, None, "", 2)
    assert out.flatten().tolist() == [100.5, 210.5, 321.5]
    assert state.tolist() == [[[2.0, 3.0]]]


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=3), taps=st.integers(1, 4), kept=st.integers(0, 5),
       biased=st.booleans(), started=st.booleans(), activation=st.sampled_from(["", "silu"]))  # fmt: skip
def test_packed_sequences_are_each_a_padded_convolution(
    sizes: list[int], taps: int, kept: int, biased: bool, started: bool, activation: str
) -> None:
    torch.manual_seed(sum(sizes))
    x, weight = torch.randn(1, sum(sizes), 3), torch.randn(3, taps)
    bias = torch.randn(3) if biased else None
    before = torch.randn(len(sizes), 3, 4) if started else torch.zeros(len(sizes), 3, 4)
    ends = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()])
    arguments = (x, weight, bias, before if started else None, ends, x, activation, kept)
    out, state = conv(*arguments)
    for n, (start, end) in enumerate(zip(ends.tolist(), ends.tolist()[1:], strict=False)):
        wide = torch.cat([before[n:n + 1], x[:, start:end].transpose(1, 2)], -1)
        one = conv1d(wide[..., 5 - taps:], weight[:, None], bias, groups=3).transpose(1, 2)
        one = silu(one) if activation else one
        torch.testing.assert_close(out[:, start:end], one + x[:, start:end])
        torch.testing.assert_close(state[n], torch.cat([torch.zeros(3, 5), wide[0]], 1)[:, -kept:] if kept
                                   else wide[0, :, :0])
    empty = conv(*(each.to("meta") if isinstance(each, torch.Tensor) else each for each in arguments))
    assert [(e.shape, e.dtype) for e in empty] == [(out.shape, out.dtype), (state.shape, state.dtype)]


@pytest.mark.parametrize("room", [3, 6])
def test_tokens_one_by_one_are_all_at_once(room: int) -> None:
    torch.manual_seed(1)
    x, weight, bias = torch.randn(2, 9, 3), torch.randn(3, 4), torch.randn(3)
    whole, last = conv(x, weight, bias, None, None, None, "silu", room)
    state = torch.zeros(2, 3, room)
    steps = [update(x[:, t:t + 1], state, weight, bias, None, None, "silu") for t in range(9)]
    torch.testing.assert_close(torch.cat(steps, 1), whole)
    torch.testing.assert_close(state, last)


def test_a_ring_holds_the_same_inputs() -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(2, 9, 3), torch.randn(3, 4)
    whole, _ = conv(x, weight, None, None, None, None, "", 0)
    ring = torch.zeros(2, 3, 5)
    steps = [update(x[:, t:t + 1], ring, weight, None, torch.full((2,), t), None, "") for t in range(9)]
    torch.testing.assert_close(torch.cat(steps, 1), whole)
    torch.testing.assert_close(ring[:, :, 8 % 5], x[:, 8])


def test_sequences_pick_their_state_and_padding_is_left_alone() -> None:
    torch.manual_seed(1)
    x, weight, state = torch.randn(2, 1, 3), torch.randn(3, 4), torch.randn(4, 3, 3)
    before = state.clone()
    out = update(x, state, weight, None, None, torch.tensor([2, -1]), "")
    torch.testing.assert_close(out[0, 0], (torch.cat([before[2], x[0].T], 1) * weight).sum(1))
    assert torch.equal(out[1], torch.zeros(1, 3))
    assert torch.equal(state[[0, 1, 3]], before[[0, 1, 3]])
    assert update(x.to("meta"), state.to("meta"), weight.to("meta"), None, None, None, "").shape == x.shape
