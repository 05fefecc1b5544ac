"""The forms of state spaces."""

import torch
from torch.nn.functional import linear

from dayzero.runtime.stand_ins import state_space as ssm
from dayzero.runtime.stand_ins.convolution import causal_conv1d_fn
from dayzero.runtime.stand_ins.norm import rmsnorm_fn


def test_a_whole_block_is_its_parts() -> None:
    """Gate, input, b, c and step beside each other: 4 heads of 5, 2 groups, a state of 3."""
    torch.manual_seed(0)
    mixed, weight, bias = torch.randn(2, 11, 20 + 20 + 6 + 6 + 4), torch.randn(32, 4), torch.randn(32)
    dt_bias, a, d, norm, out = torch.randn(4), -torch.rand(4), torch.randn(4), torch.rand(20), torch.randn(7, 20)
    got, state = ssm.mamba_split_conv1d_scan_combined(
        mixed, weight, bias, dt_bias, a, d, 4, return_final_states=True, rmsnorm_weight=norm, rmsnorm_eps=1e-5,
        outproj_weight=out, headdim=5, ngroups=2, norm_before_gate=False)  # fmt: skip
    z, middle, dt = mixed.split([20, 32, 4], -1)
    x, b, c = causal_conv1d_fn(middle.transpose(1, 2), weight, bias, activation="silu").transpose(1, 2).split(
        [20, 6, 6], -1)  # fmt: skip
    y, last = ssm.mamba_chunk_scan_combined(x.reshape(2, 11, 4, 5), dt, a, b.reshape(2, 11, 2, 3),
                                            c.reshape(2, 11, 2, 3), 4, d, None, dt_bias, dt_softplus=True,
                                            return_final_states=True)
    expected = linear(rmsnorm_fn(y.flatten(2), norm, None, z, 1e-5, 10, False), out)
    torch.testing.assert_close((got, state), (expected, last))
    plain = ssm.mamba_split_conv1d_scan_combined(mixed, weight, bias, dt_bias, a, d, 4, headdim=5, ngroups=2)
    gated = ssm.mamba_chunk_scan_combined(x.reshape(2, 11, 4, 5), dt, a, b.reshape(2, 11, 2, 3),
                                          c.reshape(2, 11, 2, 3), 4, d, z.reshape(2, 11, 4, 5), dt_bias,
                                          dt_softplus=True)
    torch.testing.assert_close(plain, gated.flatten(2))


def test_a_step_goes_on_from_the_scan() -> None:
    torch.manual_seed(0)
    u, delta, a = torch.randn(2, 6, 9), torch.randn(2, 6, 9), -torch.rand(6, 4)
    b, c, d, bias = torch.randn(2, 4, 9), torch.randn(2, 4, 9), torch.randn(6), torch.randn(6)
    whole = ssm.selective_scan_fn(u, delta, a, b, c, d, None, bias, True)
    first, state = ssm.selective_scan_fn(u[..., :8], delta[..., :8], a, b[..., :8], c[..., :8], d, None, bias, True,
                                         True)
    last = ssm.selective_state_update(state, u[..., 8], delta[..., 8], a, b[..., 8], c[..., 8], d, None, bias, True)
    torch.testing.assert_close(torch.cat([first, last[..., None]], -1), whole)
