"""The forms of the short convolution."""

import pytest
import torch
from torch.nn.functional import conv1d, silu

from dayzero.runtime.stand_ins import convolution as conv


def test_channels_first_with_states() -> None:
    torch.manual_seed(0)
    x, weight, bias, before = torch.randn(2, 3, 7), torch.randn(3, 4), torch.randn(3), torch.randn(2, 3, 3)
    kept = torch.empty(2, 3, 3)
    out, states = conv.causal_conv1d_fn(x, weight, bias, None, before, True, kept, "silu")
    wide = torch.cat([before, x], -1)
    torch.testing.assert_close(out, silu(conv1d(wide, weight[:, None], bias, groups=3)))
    assert states is kept
    torch.testing.assert_close(kept, x[..., -3:])
    state = before.clone()
    steps = torch.stack([conv.causal_conv1d_update(x[..., t], state, weight, bias, True) for t in range(7)], -1)
    torch.testing.assert_close(steps, out)
    torch.testing.assert_close(state, kept)
    whole = before.clone()
    torch.testing.assert_close(conv.causal_conv1d_update(x, whole, weight, bias, "silu"), out)


def test_the_module_goes_on_from_its_state_in_place() -> None:
    torch.manual_seed(0)
    module, x = conv.ShortConvolution(6, 4, bias=True), torch.randn(2, 9, 6)
    assert module.weight.shape == (6, 1, 4)
    with torch.inference_mode():
        whole, last = module(x, output_final_state=True)
        first, state = module(x[:, :8], output_final_state=True)
        second, same = module(x[:, 8:], cache=state, output_final_state=True)
    assert same is state
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    torch.testing.assert_close(state, last)
    torch.testing.assert_close(whole, silu(super(conv.ShortConvolution, module).forward(x.transpose(1, 2))[..., :9])
                               .transpose(1, 2))  # fmt: skip


def test_one_token_of_each_packed_sequence_and_a_mask() -> None:
    torch.manual_seed(0)
    module, x, state = conv.ShortConvolution(6, 4), torch.randn(1, 3, 6), torch.randn(3, 6, 4)
    with torch.inference_mode():
        packed, _ = module(x, cache=state.clone(), cu_seqlens=torch.arange(4), output_final_state=True)
        single, _ = module(x.transpose(0, 1), cache=state.clone(), output_final_state=True)
        masked, none = module(x, mask=torch.tensor([[0, 1, 1]]))
        zeroed, _ = module(x * torch.tensor([0.0, 1, 1])[:, None])
    torch.testing.assert_close(packed, single.transpose(0, 1))
    torch.testing.assert_close(masked, zeroed)
    assert none is None


def test_heads_beside_each_other_are_channels() -> None:
    x, weight = torch.randn(1, 5, 2, 3), torch.randn(6, 4)
    out, state = conv.fla_causal_conv1d(x, weight)
    assert state is None
    torch.testing.assert_close(out.flatten(2), conv.fla_causal_conv1d(x.flatten(2), weight)[0])
    with pytest.raises(TypeError, match="has a weight"):
        conv.fla_causal_conv1d(x)
