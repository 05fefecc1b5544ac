"""Memory of training against the table of arXiv:2205.05198 and values worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import dense, sparse, target

from dayzero.placement.decoder import plain_decoder
from dayzero.schema import Layout
from dayzero.stages.plan.training.memory import CAUSES, in_flight, layer_bytes, peak_bytes
from dayzero.stages.plan.training.setup import Setup

CLUSTER = target(8, 8).cluster
S, H, A, T = 2048, 12288, 96, 8  # GPT-3 in that paper
ONE = Layout()
GPT = plain_decoder("gpt3-175b", hidden=H, layers=96, heads=A)


def setup(layout=ONE, **changes):
    wanted = {"layout": layout, "sequence": S, "micro_batch": 1, "global_batch": 64, "scheme": "f16",
              "fused_attention": False, "sequence_parallel": False}
    return Setup(**(wanted | changes))


@pytest.mark.parametrize(("chosen", "published"), [
    (setup(), S * H * (34 + 5 * A * S / H)),
    (setup(Layout(tp=T)), S * H * (10 + 24 / T + 5 * A * S / (H * T))),
    (setup(Layout(tp=T), sequence_parallel=True), S * H / T * (34 + 5 * A * S / H)),
    (setup(Layout(tp=T), recompute="selective"), S * H * (10 + 24 / T)),
    (setup(Layout(tp=T), recompute="selective", sequence_parallel=True), S * H * 34 / T),
    (setup(Layout(tp=T), recompute="full"), S * H * 2),
])
def test_activations_of_a_layer(chosen, published):
    assert layer_bytes(GPT, 0, chosen) == pytest.approx(published)


def test_fused_attention_keeps_inputs_of_products_and_no_scores():
    chosen = setup(fused_attention=True, scheme="bf16")
    mixing = 2 * 2 * 576 + 2 * (576 + 2 * 192 + 576)
    block = 2 * 2 * 576 + 2 * 3 * 1536
    assert layer_bytes(dense(), 0, chosen) == S * (mixing + block)


@pytest.mark.parametrize(("zero", "weights", "gradients", "optimiser"), [
    (0, 2, 4, 12), (1, 2, 4, 12 / 8), (2, 2, 4 / 8, 12 / 8), (3, 2 / 8, 4 / 8, 12 / 8)])
def test_states_by_what_replicas_share(zero, weights, gradients, optimiser):
    # arXiv:1910.02054: 2 + 2 + 12 bytes a parameter, here with gradients in 32 bits
    (causes,) = peak_bytes(dense(), setup(Layout(dp=8), zero=zero), CLUSTER)
    for cause, each in (("weights", weights), ("gradients", gradients), ("optimiser", optimiser)):
        assert causes[cause] == pytest.approx(134_515_008 * each, rel=1e-6)
    assert tuple(causes) == CAUSES


def test_adapters_keep_neither_gradients_nor_states():
    (causes,) = peak_bytes(dense(), setup(frozen=True), CLUSTER)
    assert causes["gradients"] == causes["optimiser"] == 0 < causes["weights"]


def test_micro_batches_in_flight():
    # arXiv:2205.05198, section 4.2.3: the first stage keeps p, interleaved p (1 + (p - 1) / (p m)) with m chunks
    assert [in_flight(setup(Layout(pp=4)), stage) for stage in range(4)] == [4, 3, 2, 1]
    assert in_flight(setup(Layout(pp=8), virtual=3), 0) == pytest.approx(8 * (1 + 7 / 24))
    assert in_flight(setup(Layout(pp=8), global_batch=2), 0) == 2


def test_logits_are_on_the_last_stage():
    first, last = peak_bytes(dense(), setup(Layout(pp=2)), CLUSTER)
    assert first["logits"] == 0 and last["logits"] == S * 49152 * 10


@given(st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 2, 4)), st.sampled_from(("none", "selective", "full")))
def test_sharing_and_recomputing_never_need_more(tp, pp, recompute):
    layout = Layout(tp=tp, pp=pp, dp=4)
    chosen = setup(layout, recompute=recompute, fused_attention=True, sequence_parallel=True, scheme="bf16")
    least = [max(sum(causes.values()) for causes in peak_bytes(sparse(), one, CLUSTER))
             for one in (chosen, setup(layout, fused_attention=True, sequence_parallel=True, scheme="bf16"))]
    if pp > 1 or recompute != "full":  # a single stage keeps one layer more while it computes it again
        assert least[0] <= least[1] * 1.2
