"""Operations of layers and steps against values worked out by hand."""

import pytest
from tests.support.plan_models import dense, device, sparse, target

from dayzero.placement.decoder import plain_decoder
from dayzero.schema import Layout
from dayzero.stages.plan.training.flops import mixing_flops, multiplied, token_flops
from dayzero.stages.plan.training.load import COLUMN, Loads
from dayzero.stages.plan.training.setup import Setup

CLUSTER = target(8, 4).cluster
ONE = Layout()
RATE, MEMORY = 1e14, 1e12


def setup(layout=ONE, **changes):
    wanted = {"layout": layout, "sequence": 1024, "micro_batch": 2, "global_batch": 2 * layout.dp, "scheme": "bf16"}
    return Setup(**(wanted | changes))


def column(vector, name):
    return float(vector[COLUMN[name]])


def test_products_take_two_operations_forward_and_four_backward():
    load = Loads(dense(), setup(), CLUSTER).layer(0)
    parameters = 2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576
    assert column(load.forward, "matrix16") == pytest.approx(2 * 2048 * parameters / RATE)
    assert column(load.backward, "matrix16") == pytest.approx(2 * column(load.forward, "matrix16"))


def test_fused_attention_counts_causal_pairs_and_others_all():
    fused = Loads(dense(), setup(), CLUSTER).layer(0)
    assert column(fused.forward, "attention") == pytest.approx(2 * 2 * 9 * 128 * (1024 * 1025 / 2) / RATE)
    assert column(fused.backward, "attention") == pytest.approx(2.5 * column(fused.forward, "attention"))
    written = Loads(dense(), setup(fused_attention=False), CLUSTER).layer(0)
    assert column(written.forward, "scores") == pytest.approx(13 * 2 * 9 * 1024**2 / MEMORY)
    assert column(written.core, "scores") == column(written.forward, "scores")
    assert column(fused.core, "attention") == 0


def test_tensor_parallel_shares_products_and_sends_two_all_reduces():
    load = Loads(plain_decoder("any", hidden=512, layers=2, heads=8), setup(Layout(tp=4)), CLUSTER).layer(0)
    assert column(load.forward, "matrix16") == pytest.approx(2 * 2048 * 12 * 512**2 / 4 / RATE)
    assert column(load.forward, "inside") == pytest.approx(4 * 3 / 4 * 2048 * 512 * 2 / 1e11)
    assert column(load.forward, "network") == 0


def test_experts_multiply_the_rows_that_visit_them():
    load = Loads(sparse(), setup(Layout(dp=8, ep=8)), CLUSTER).layer(0)
    assert column(load.forward, "experts16") == pytest.approx(2 * 2048 * 4 * 3 * 512 * 1024 / RATE)
    assert column(load.forward, "layers") == 1
    reached = 8 * (1 - (7 / 8) ** 4)  # ranks of a token with four experts
    assert column(load.forward, "dispatch") == pytest.approx(2 * 2048 * 1024 * 2 * reached * 7 / 8 / 1e11)


def test_context_parallel_halves_rows_and_pairs():
    one, two = (Loads(dense(), setup(Layout(dp=2, cp=cp)), CLUSTER).layer(0) for cp in (1, 2))
    for name in ("matrix16", "attention"):
        assert column(two.forward, name) == pytest.approx(column(one.forward, name) / 2)
    assert column(two.forward, "exchange") > 0 == column(two.forward, "inside")


def test_fewer_bits_compute_at_their_rate_and_are_cast():
    on = device(flops={"bf16": 1e14, "fp8": 2e14})
    load = Loads(dense(), setup(scheme="fp8"), target(8, on=on).cluster).layer(0)
    whole = Loads(dense(), setup(), CLUSTER).layer(0)
    assert column(load.forward, "matrix8") == pytest.approx(column(whole.forward, "matrix16") / 2)
    assert column(load.forward, "cast") > 0 == column(whole.forward, "cast")


def test_operations_of_a_token_are_six_for_each_parameter_and_attention():
    model = plain_decoder("any", hidden=12288, layers=96, heads=96)
    assert multiplied(model) == 96 * 12 * 12288**2 + 51200 * 12288
    assert mixing_flops(model, 2048) == pytest.approx(96 * 4 * 12288 * 2049 / 2)
    assert token_flops(model, 2048) == pytest.approx(6 * multiplied(model) + 3 * mixing_flops(model, 2048))
    # arXiv:2104.04473, equation 3, per token without recomputation: 72 l h^2 (1 + s / 6h + V / 12 l h), not causal
    theirs = 72 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (12 * 96 * 12288))
    assert 6 * multiplied(model) + 3 * mixing_flops(model, 2048, causal=False) == pytest.approx(theirs, rel=1e-9)


def test_adapters_and_experts_count_what_is_computed():
    assert token_flops(sparse(), 1024, frozen=True) == pytest.approx(token_flops(sparse(), 1024) * 2 / 3)
    active = 8 * (2 * 1024**2 + 2 * 256 * 1024 + 64 * 1024 + 4 * 3 * 512 * 1024) + 32000 * 1024
    assert multiplied(sparse()) == active
