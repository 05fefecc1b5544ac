"""Memory of training against the table of arXiv:2205.05198 and values worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import dense, sparse, target

from dayzero.placement.decoder import plain_decoder
from dayzero.schema import Layout
from dayzero.stages.plan.training.memory import CAUSES, in_flight, layer_bytes, least_bytes, peak_bytes
from dayzero.stages.plan.training.setup import NONE, PRODUCTS, RECOMPUTE, Setup

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
    assert layer_bytes(GPT, 0, chosen, chosen.redo) == pytest.approx(published)


def test_fused_attention_keeps_inputs_of_products_and_no_scores():
    chosen = setup(fused_attention=True, scheme="bf16")
    mixing = 2 * 2 * 576 + 2 * (576 + 2 * 192 + 576)
    block = 2 * 2 * 576 + 2 * 3 * 1536
    assert layer_bytes(dense(), 0, chosen, NONE) == S * (mixing + block)


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
    # arXiv:2205.05198, section 4.2.3: the first stage keeps p, interleaved p (1 + (p - 1) / (p m)) with m chunks;
    # arXiv:2104.04473, section 2.2: the last of them starts with (m - 1) p chunks and one more
    assert [in_flight(setup(Layout(pp=4)), stage) for stage in range(4)] == [4, 3, 2, 1]
    assert in_flight(setup(Layout(pp=8), virtual=3), 0) == pytest.approx(8 * (1 + 7 / 24))
    assert in_flight(setup(Layout(pp=8), virtual=3), 7) == pytest.approx((2 * 8 + 1) / 3)
    assert in_flight(setup(Layout(pp=8), global_batch=2), 0) == 2
    assert in_flight(setup(Layout(pp=8), schedule="zero-bubble"), 7) == 8  # arXiv:2401.10241, ZB-H1


def test_what_lies_in_the_host_needs_a_few_layers_on_the_device():
    (here,) = peak_bytes(dense(), setup(), CLUSTER)
    for offload, moved in (("optimiser", {"optimiser"}), ("gradients", {"optimiser", "gradients"}),
                           ("weights", {"optimiser", "gradients", "weights"})):
        (away,) = peak_bytes(dense(), setup(offload=offload), CLUSTER)
        for cause in ("weights", "gradients", "optimiser"):
            assert away[cause] == pytest.approx(here[cause] * (2 / 30 if cause in moved else 1), rel=1e-6)


def test_what_a_device_needs_at_least():
    # 2 + 4 + 12 bytes a parameter, shared by 64
    assert least_bytes(dense(), target(8, 8)) == pytest.approx(18 * 134_515_008 / 64)
    (causes,) = peak_bytes(dense(), setup(Layout(dp=64), zero=3), CLUSTER)
    assert causes["weights"] + causes["gradients"] + causes["optimiser"] == pytest.approx(18 * 134_515_008 / 64, abs=3)


def test_half_of_the_products_are_kept():
    chosen = setup(fused_attention=True, scheme="bf16")
    widths, output = 576 + 2 * 192 + 576 - 576, 576  # queries, keys and values; what attention gives
    attention = 2 * 576 + 2 * (576 + 2 * 192) / 2 + 2 * output
    block = 2 * 576 + 2 * 2 * 1536 / 2
    assert layer_bytes(dense(), 0, chosen, PRODUCTS) == pytest.approx(S * (attention + block))
    assert widths == 960


def test_what_is_allocated_and_freed_leaves_gaps():
    (causes,) = peak_bytes(dense(), setup(), CLUSTER)
    assert causes["fragmentation"] == pytest.approx(
        0.05 * (causes["activations"] + causes["logits"] + causes["communication"]), abs=2)


def test_logits_are_on_the_last_stage():
    first, last = peak_bytes(dense(), setup(Layout(pp=2)), CLUSTER)
    assert first["logits"] == 0 and last["logits"] == S * 49152 * 14
    (fused,) = peak_bytes(dense(), setup(logit_bytes=10), CLUSTER)
    assert fused["logits"] == S * 49152 * 10


@given(st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 2, 4)), st.sampled_from(RECOMPUTE))
def test_sharing_and_recomputing_never_need_more(tp, pp, recompute):
    layout = Layout(tp=tp, pp=pp, dp=4)
    chosen = setup(layout, recompute=recompute, fused_attention=True, sequence_parallel=True, scheme="bf16")
    least = [max(sum(causes.values()) for causes in peak_bytes(sparse(), one, CLUSTER))
             for one in (chosen, setup(layout, fused_attention=True, sequence_parallel=True, scheme="bf16"))]
    if pp > 1 or recompute != "full":  # a single stage keeps one layer more while it computes it again
        assert least[0] <= least[1] * 1.2
