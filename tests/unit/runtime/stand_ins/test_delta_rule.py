"""The forms of the delta rule agree with each other."""

import pytest
import torch

from dayzero.runtime.stand_ins import delta_rule as rule
from dayzero.runtime.stand_ins import linear_attention as linear
from dayzero.runtime.stand_ins.recording import MissingStandIn


def inputs(tokens: int = 13) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, tokens, 3, 8) for _ in range(3))
    return q, k, v, torch.randn(2, tokens, 3, 8), torch.randn(2, tokens, 3)


def test_prefill_and_a_step_with_everything_inside_are_the_whole() -> None:
    """As code of releases calls it: gate, sigmoid and unit length inside, bounded, the state value first."""
    q, k, v, g, beta = inputs()
    gate = {"A_log": torch.randn(3), "dt_bias": torch.randn(24), "use_gate_in_kernel": True, "lower_bound": -5.0,
            "use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "output_final_state": True,
            "transpose_state_layout": True}  # fmt: skip
    whole, last = rule.chunk_kda(q, k, v, g, beta, safe_gate=True, **gate)
    first, state = rule.chunk_kda(*(x[:, :12] for x in (q, k, v, g, beta)), safe_gate=True, **gate)
    second, end = rule.fused_recurrent_kda(*(x[:, 12:] for x in (q, k, v, g, beta)), initial_state=state, **gate)
    torch.testing.assert_close((torch.cat([first, second], 1), end), (whole, last), atol=1e-5, rtol=1e-4)
    opened = rule.fused_kda_gate(g, gate["A_log"], gate["dt_bias"], -5.0)
    assert bool(((opened >= -5) & (opened < 0)).all())
    plain, _ = rule.chunk_kda(q, k, v, opened, beta.sigmoid(), use_qk_l2norm_in_kernel=True)
    torch.testing.assert_close(plain, whole, atol=1e-5, rtol=1e-4)


def test_a_decay_of_each_head_is_one_of_all_its_channels_and_none_is_zero() -> None:
    q, k, v, g, beta = inputs()
    head, beta = -g[..., 0].abs(), beta.sigmoid()
    k = k / k.norm(dim=-1, keepdim=True)
    wide, _ = rule.chunk_kda(q, k, v, head[..., None].expand_as(g), beta)
    for out, _ in (rule.chunk_gated_delta_rule(q, k, v, head, beta),
                   rule.fused_recurrent_gated_delta_rule(q, k, v, head, beta=beta)):
        torch.testing.assert_close(out, wide, atol=1e-5, rtol=1e-4)
    none, _ = rule.fused_recurrent_gated_delta_rule(q, k, v, beta=beta)
    for out, state in (rule.chunk_delta_rule(q, k, v, beta), rule.fused_recurrent_delta_rule(q, k, v, beta)):
        torch.testing.assert_close(out, none, atol=1e-5, rtol=1e-4)
        assert state is None
    torch.testing.assert_close(rule.fused_gdn_gate(g[..., 0], torch.zeros(3)),
                               -torch.nn.functional.softplus(g[..., 0]))


def test_linear_attention_in_chunks_and_token_by_token() -> None:
    q, k, v, g, _ = inputs(70)
    g, gamma = -g.abs(), -torch.rand(3)
    pairs = [
        (linear.chunk_gla(q, k, v, g), linear.fused_recurrent_gla(q, k, v, g)),
        (linear.chunk_simple_gla(q, k, v, g[..., 0]), linear.fused_recurrent_simple_gla(q, k, v, g[..., 0])),
        (linear.chunk_simple_gla(q, k, v, g_gamma=gamma), linear.fused_recurrent_simple_gla(q, k, v, g_gamma=gamma)),
        (linear.chunk_lightning_attn(q, k, v, 1, 4), linear.fused_recurrent_lightning_attn(q, k, v, 1, 4)),
        (linear.chunk_retention(q, k, v), linear.fused_recurrent_retention(q, k, v)),
        (linear.chunk_linear_attn(q, k, v, normalize=False), linear.fused_recurrent_linear_attn(q, k, v)),
    ]
    for chunked, stepped in pairs:
        torch.testing.assert_close(chunked[0], stepped[0], atol=1e-4, rtol=1e-4)
    outs = [chunked[0] for chunked, _ in pairs]
    assert not any(torch.allclose(a, b) for i, a in enumerate(outs) for b in outs[:i])


def test_constant_decays_by_hand() -> None:
    """Head 1 of 3 in layer 1 of 4 decays by 8 / 3 * 3 / 4 = 2 for each token; retention's by 1 - 2 ** -6."""
    q = k = torch.ones(1, 2, 3, 1)
    v = torch.tensor([1.0, 0.0]).view(1, 2, 1, 1).expand(1, 2, 3, 1)
    lightning, _ = linear.chunk_lightning_attn(q, k, v, 1, 4)
    assert lightning[0, 1, :, 0].tolist() == pytest.approx([1.0, 0.1353353, 0.0183156], rel=1e-5)
    retention, _ = linear.chunk_retention(q, k, v)
    assert retention[0, 1, :, 0].tolist() == pytest.approx([1 - 2**-5, 1 - 2**-6, 1 - 2**-7])


def test_what_they_do_not_have_is_refused() -> None:
    q, k, v, g, beta = inputs()
    for call in (lambda: rule.chunk_kda(q, k, v, g, beta, cp_context=object()),
                 lambda: rule.fused_recurrent_gated_delta_rule(q, k, v, gv=g),
                 lambda: linear.fused_recurrent_gla(q, k, v, g, reverse=True),
                 lambda: linear.chunk_linear_attn(q, k, v)):
        with pytest.raises(MissingStandIn):
            call()
