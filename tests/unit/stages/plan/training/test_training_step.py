"""Time of a step: bubbles, stages, replicas and the host."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import dense, device, sparse, target

from dayzero.data.training import Reached
from dayzero.placement.decoder import plain_decoder
from dayzero.schema import Layout
from dayzero.stages.plan.training.dealing import split
from dayzero.stages.plan.training.kinds import Kinds
from dayzero.stages.plan.training.load import COLUMN, WEIGHTED
from dayzero.stages.plan.training.setup import Setup
from dayzero.stages.plan.training.states import Held, holdings, shards
from dayzero.stages.plan.training.step import seconds, work

CLUSTER = target(8, 8).cluster
ONE = Layout()
FREE = {"launch": 0.0, "launch_expert": 0.0, "kernel": 0.0, "message": 0.0, "step": 0.0}
STATED = Reached(**(dict.fromkeys(Reached.__struct_fields__, 1.0) | FREE))
MODEL = plain_decoder("any", hidden=1024, layers=16, heads=16)


def setup(layout=ONE, **changes):
    wanted = {"layout": layout, "sequence": 1024, "micro_batch": 1, "global_batch": 64, "scheme": "bf16"}
    return Setup(**(wanted | changes))


def time(chosen, reached=STATED, model=MODEL):
    return seconds(work(model, chosen, CLUSTER), chosen, reached)


def holds(model, chosen, start, stop):
    """Parameters on one rank of the stage with these layers."""
    kinds, bounds = Kinds(model), [*range(0, start, max(1, start)), start, stop, len(model.layers)]
    chunks = [one for one in itertools.pairwise(sorted(set(bounds))) if one[0] < one[1]]
    counts = kinds.each(chunks, len(chunks))[chunks.index((start, stop))]
    return Held(*(float(counts @ one) for one in holdings(model, chosen, kinds)))


@pytest.mark.parametrize(("pp", "virtual", "schedule", "waits"), [
    (1, 1, "1f1b", 0), (8, 1, "1f1b", 7), (8, 2, "1f1b", 7 / 2), (8, 1, "zero-bubble", 7 / 3)])
def test_bubbles_in_micro_batches(pp, virtual, schedule, waits):
    # arXiv:2104.04473: (p - 1) / v micro-batches; arXiv:2401.10241, ZB-H1: (p - 1) (F + B - W), here F = B = W
    model = plain_decoder("any", hidden=2048, layers=16, heads=16, vocab=8)
    only = msgspec.structs.replace(STATED, attention=1e9, pointwise=1e9, inside=1e9, network=1e9)
    step = time(setup(Layout(pp=pp), virtual=virtual, schedule=schedule), only, model)
    busy = step.seconds - step.causes.get("pipeline bubble", 0.0)
    assert step.causes.get("pipeline bubble", 0.0) / (busy / 64) == pytest.approx(waits, rel=0.01)


def test_the_bubble_is_its_share_of_equal_stages():
    # arXiv:2104.04473, section 2.2: (p - 1) / m of the ideal time; interleaved (p - 1) / (v m)
    step = time(setup(Layout(pp=4)), model=plain_decoder("any", hidden=1024, layers=400, heads=16, vocab=8))
    assert step.bubble / (1 - step.bubble) == pytest.approx(3 / 64, rel=0.02)


def test_causes_add_up_and_recomputation_costs_a_forward_pass():
    plain, full = time(setup()), time(setup(recompute="full"))
    assert sum(plain.causes.values()) == pytest.approx(plain.seconds)
    assert full.causes["matrix products"] == pytest.approx(plain.causes["matrix products"] * 4 / 3, rel=0.01)
    assert full.seconds > time(setup(recompute="selective")).seconds > plain.seconds


def test_the_host_bounds_a_step_of_small_kernels():
    slow = msgspec.structs.replace(STATED, launch=1e-3)
    made = work(MODEL, setup(), CLUSTER)
    count = float((made.parts.forward + made.parts.backward)[COLUMN["launches"]] @ made.stages.counts[0])
    assert time(setup(), slow).seconds == pytest.approx(64 * count * 1e-3, rel=0.05)


def test_gradients_of_replicas_cross_the_slowest_link_and_states_are_shared():
    whole, sharded = (work(MODEL, setup(Layout(dp=8), zero=zero), CLUSTER) for zero in (0, 1))
    held = holds(MODEL, setup(), 0, 16).total
    assert float(whole.replicas[COLUMN["inside"]]) == pytest.approx(held * 8 * 7 / 8 / 1e11)
    assert float(sharded.replicas[COLUMN["inside"]]) == pytest.approx(held * 6 * 7 / 8 / 1e11)
    assert float(sharded.optimizer.sum()) == pytest.approx(float(whole.optimizer.sum()) / 8)
    far = work(MODEL, setup(Layout(tp=8, dp=8)), CLUSTER)
    assert float(far.replicas[COLUMN["network"]]) > 0 == float(far.replicas[COLUMN["inside"]])


def test_shared_gradients_are_reduced_and_shared_weights_gathered_for_each_micro_batch():
    held = holds(MODEL, setup(), 0, 16).total
    each = held * 7 / 8 / 1e11
    for zero, sent in ((2, 8 * 4 + 2), (3, 8 * 4 + 8 * 2 * 2)):  # 8 micro-batches; 4 bytes of gradient, 2 of weight
        found = work(MODEL, setup(Layout(dp=8), zero=zero), CLUSTER)
        assert float(found.replicas[COLUMN["inside"]]) == pytest.approx(sent * each)


def test_what_computing_cannot_hide_of_gradients_shows():
    slow = msgspec.structs.replace(STATED, exposed=0.1, inside=1e-4)
    found = time(setup(Layout(dp=8), global_batch=8), slow)
    sent = float(work(MODEL, setup(Layout(dp=8), global_batch=8), CLUSTER).replicas[COLUMN["inside"]]) / 1e-4
    busy = found.seconds - found.causes["replicas"] - found.causes["optimiser"]
    assert found.causes["replicas"] == pytest.approx(sent - busy)
    assert found.causes["replicas"] > 0.1 * sent


def test_states_go_to_the_host_and_back_once_a_step():
    cluster = target(8, 8, on=device(host_bandwidth=5e10)).cluster
    held = holds(MODEL, setup(), 0, 16).total
    here, away = (seconds(work(MODEL, setup(offload=kind), cluster), setup(offload=kind), STATED)
                  for kind in ("none", "optimiser"))
    assert "offload" not in here.causes
    assert away.causes["offload"] == pytest.approx(2 * 12 * held / 5e10)
    weights = work(MODEL, setup(offload="weights"), cluster).host
    assert weights[1] == pytest.approx(64 * max(4, 2 * 2) * held / 5e10)


def test_every_second_product_is_computed_again():
    plain, again = time(setup()), time(setup(recompute="products"))
    made = work(MODEL, setup(), CLUSTER)
    forward = 64 * float(made.parts.forward[WEIGHTED].sum(axis=0) @ made.stages.counts[0])
    core = 64 * float(made.parts.core.sum(axis=0) @ made.stages.counts[0])
    assert again.seconds - plain.seconds == pytest.approx(forward / 2 + core, rel=1e-6)


def test_sequences_are_shared_along_tp_or_whole():
    shared, whole = (work(MODEL, setup(Layout(tp=4), sequence_parallel=kind), CLUSTER).parts for kind in (True, False))
    norms = 10 * 1024 * 1024 * 2 / 1e12  # bytes of two norms and two additions over the memory bandwidth
    gap = whole.forward[COLUMN["pointwise"], 0] - shared.forward[COLUMN["pointwise"], 0]
    assert gap == pytest.approx(norms * 3 / 4)


def test_attention_hides_the_exchange_of_context_parallelism_in_all_rounds_but_one():
    layout = Layout(dp=4, cp=4)
    parts = work(MODEL, setup(layout), CLUSTER).parts
    ring, core = (float(parts.forward[COLUMN[name], 0]) for name in ("exchange", "attention"))
    near = time(setup(layout), msgspec.structs.replace(STATED, inside=2 * ring / (core * 3 / 4)))
    assert near.causes.get("tensor and context parallel", 0.0) == pytest.approx(0, abs=1e-9)
    slow = msgspec.structs.replace(STATED, inside=ring / core)  # as long as attention forward, 0.8 of it backward
    shown = 64 * 16 * core * ((1 - 3 / 4) + max(0.0, 2 - 2.5 * 3 / 4))
    assert time(setup(layout), slow).causes["tensor and context parallel"] == pytest.approx(shown, rel=1e-6)


def test_experts_have_replicas_of_their_own():
    layout = Layout(dp=16, ep=8)
    assert shards(setup(layout)) == (16, 2)
    held = holds(sparse(), setup(layout), 0, 8)
    assert held.experts == pytest.approx(8 * 64 * 3 * 512 * 1024 / 8)
    assert held.total == pytest.approx(held.dense + held.experts)


def test_a_tied_embedding_is_on_both_ends():
    thirds = ((0, 10), (10, 20), (20, 30))
    first, middle, last = (holds(dense(), setup(Layout(pp=3)), *one) for one in thirds)
    assert first.total - middle.total == 49152 * 576
    assert last.total - middle.total == 49152 * 576 + 576  # and the last norm


def test_the_head_takes_layers_from_the_last_stage():
    assert split([1.0] * 10, 4, 0.0, 2.0) == ((0, 3), (3, 6), (6, 9), (9, 10))
    assert split([1.0] * 8, 4, 0.0, 0.0) == ((0, 2), (2, 4), (4, 6), (6, 8))


def test_stages_take_no_more_than_they_have_room_for():
    assert split([1.0] * 8, 4, 0.0, 0.0, lambda stage, start: start + (1 if stage == 0 else 3)) == (
        (0, 1), (1, 4), (4, 7), (7, 8))
    assert split([1.0] * 8, 4, 0.0, 0.0, lambda stage, start: start + 1) == ()


@given(st.lists(st.floats(0.5, 3.0), min_size=8, max_size=40), st.integers(1, 8), st.floats(0, 5))
def test_stages_cover_all_layers_and_no_other_cut_is_much_faster(costed, stages, head):
    bounds = split(costed, stages, 0.0, head)
    assert len(bounds) == stages and bounds[0][0] == 0 and bounds[-1][1] == len(costed)
    assert all(start < stop for start, stop in bounds)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(bounds))
    slowest = max(sum(costed[start:stop]) + (head if stop == len(costed) else 0) for start, stop in bounds)
    least = max((sum(costed) + head) / stages, max(costed), head)
    assert slowest <= least + max(costed) + 1e-6


@given(st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 2, 4)), st.sampled_from((1, 2, 4, 8)))
def test_more_devices_never_make_products_dearer(tp, pp, dp):
    layout = Layout(tp=tp, pp=pp, dp=dp)
    alone, shared = time(setup()), time(setup(layout))
    assert shared.causes["matrix products"] <= alone.causes["matrix products"] * 1.001
