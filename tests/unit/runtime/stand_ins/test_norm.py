"""The forms of fused norms."""

import pytest
import torch
from torch.nn.functional import layer_norm, normalize, rms_norm, silu

from dayzero.runtime.stand_ins import norm

X, GATE, MORE = (torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
WEIGHT = torch.rand(8, generator=torch.Generator().manual_seed(4)) + 0.5


def weighted(module: torch.nn.Module) -> torch.nn.Module:
    module.weight.data.copy_(WEIGHT)
    return module


@pytest.mark.parametrize("activation", ["swish", "sigmoid"])
def test_gated(activation: str) -> None:
    gate = silu(GATE) if activation == "swish" else GATE.sigmoid()
    expected = rms_norm(X, (8,), WEIGHT, 1e-5) * gate
    torch.testing.assert_close(weighted(norm.FusedRMSNormGated(8, activation=activation))(X, GATE), expected)
    torch.testing.assert_close(norm.rms_norm_gated(X, GATE, WEIGHT, None, activation, eps=1e-5), expected)
    expected = layer_norm(X, (8,), WEIGHT, None, 1e-5) * gate
    torch.testing.assert_close(weighted(norm.FusedLayerNormGated(8, activation=activation))(X, GATE), expected)
    torch.testing.assert_close(norm.layer_norm_gated(X, GATE, WEIGHT, None, activation, eps=1e-5), expected)


def test_a_residual_is_added_first_and_comes_back_when_asked() -> None:
    for module in (norm.RMSNorm(8), norm.MambaRMSNorm(8)):
        out, total = weighted(module)(X, MORE, prenorm=True)
        torch.testing.assert_close(total, X + MORE)
        torch.testing.assert_close(out, rms_norm(X + MORE, (8,), WEIGHT, 1e-5))
    torch.testing.assert_close(norm.rms_norm_fn(X, WEIGHT, None, MORE, eps=1e-5),
                               rms_norm(X + MORE, (8,), WEIGHT, 1e-5))
    torch.testing.assert_close(norm.layer_norm_fn(X, WEIGHT, None, MORE, eps=1e-5),
                               layer_norm(X + MORE, (8,), WEIGHT, None, 1e-5))
    torch.testing.assert_close(norm.fla_layer_norm(X, WEIGHT, None), layer_norm(X, (8,), WEIGHT, None, 1e-5))
    torch.testing.assert_close(norm.fla_rms_norm(X, None, None), rms_norm(X, (8,), None, 1e-5))
    torch.testing.assert_close(norm.rms_norm(X, WEIGHT, 1e-3), rms_norm(X, (8,), WEIGHT, 1e-3))


@pytest.mark.parametrize("before", [False, True])
def test_groups_with_a_gate_before_or_after(before: bool) -> None:
    module = weighted(norm.MambaRMSNormGated(8, group_size=4, norm_before_gate=before))
    value = X if before else X * silu(GATE)
    value = rms_norm(value.view(2, 3, 2, 4), (4,), None, 1e-5).view(2, 3, 8) * WEIGHT
    torch.testing.assert_close(module(X, GATE), value * silu(GATE) if before else value)


def test_unit_length_and_a_weight_from_an_offset() -> None:
    torch.testing.assert_close(norm.l2norm(X, eps=1e-12), normalize(X, dim=-1), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(norm.l2norm(X, eps=2.0), X / (X.pow(2).sum(-1, keepdim=True) + 2).sqrt())
    module = norm.LigerRMSNorm(8, offset=1.0, init_fn="zeros")
    torch.testing.assert_close(module(X), rms_norm(X, (8,), None, 1e-6))


def test_weights_that_are_not_wanted_are_not_there() -> None:
    assert dict(norm.RMSNorm(8, elementwise_affine=False).named_parameters()) == {}
    assert [*dict(norm.LayerNorm(8, bias=True).named_parameters())] == ["weight", "bias"]
    assert [*dict(norm.FusedRMSNormSwishGate(8).named_parameters())] == ["weight"]
