"""Time of a step: bubbles, stages, replicas and the host."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import dense, sparse, target

from dayzero.data.training import Reached
from dayzero.placement.decoder import plain_decoder
from dayzero.schema import Layout
from dayzero.stages.plan.training.load import COLUMN
from dayzero.stages.plan.training.setup import Setup
from dayzero.stages.plan.training.step import bubbles, parameters, seconds, shards, split, work

CLUSTER = target(8, 8).cluster
ONE = Layout()
FREE = {"launch": 0.0, "launch_expert": 0.0, "message": 0.0, "step": 0.0}
STATED = Reached(**(dict.fromkeys(Reached.__struct_fields__, 1.0) | FREE))
MODEL = plain_decoder("any", hidden=1024, layers=16, heads=16)


def setup(layout=ONE, **changes):
    wanted = {"layout": layout, "sequence": 1024, "micro_batch": 1, "global_batch": 64, "scheme": "bf16"}
    return Setup(**(wanted | changes))


def time(chosen, reached=STATED, model=MODEL):
    return seconds(work(model, chosen, CLUSTER), chosen, reached)


@pytest.mark.parametrize(("pp", "virtual", "schedule", "waits"), [
    (1, 1, "1f1b", 0), (8, 1, "1f1b", 7), (8, 4, "1f1b", 7 / 4), (8, 1, "zero-bubble", 7 / 3)])
def test_bubbles_in_micro_batches(pp, virtual, schedule, waits):
    assert bubbles(setup(Layout(pp=pp), virtual=virtual, schedule=schedule)) == pytest.approx(waits)


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
    kernels = work(MODEL, setup(), CLUSTER).stages[0]
    count = float((kernels.forward + kernels.backward)[COLUMN["launches"]])
    assert time(setup(), slow).seconds == pytest.approx(64 * count * 1e-3, rel=0.05)


def test_gradients_of_replicas_cross_the_slowest_link_and_states_are_shared():
    whole, sharded = (work(MODEL, setup(Layout(dp=8), zero=zero), CLUSTER) for zero in (0, 1))
    held = parameters(MODEL, setup(), range(16)).total
    assert float(whole.replicas[COLUMN["inside"]]) == pytest.approx(held * 8 * 7 / 8 / 1e11)
    assert float(sharded.replicas[COLUMN["inside"]]) == pytest.approx(held * 6 * 7 / 8 / 1e11)
    assert float(sharded.optimizer.sum()) == pytest.approx(float(whole.optimizer.sum()) / 8)
    far = work(MODEL, setup(Layout(tp=8, dp=8)), CLUSTER)
    assert float(far.replicas[COLUMN["network"]]) > 0 == float(far.replicas[COLUMN["inside"]])


def test_experts_have_replicas_of_their_own():
    layout = Layout(dp=16, ep=8)
    assert shards(setup(layout)) == (16, 2)
    held = parameters(sparse(), setup(layout), range(8))
    assert held.experts == pytest.approx(8 * 64 * 3 * 512 * 1024 / 8)
    assert held.total == pytest.approx(held.dense + held.experts)


def test_a_tied_embedding_is_on_both_ends():
    thirds = ((0, 10), (10, 20), (20, 30))
    first, middle, last = (parameters(dense(), setup(Layout(pp=3)), range(*one)) for one in thirds)
    assert first.total - middle.total == 49152 * 576
    assert last.total - middle.total == 49152 * 576 + 576  # and the last norm


def test_the_head_takes_layers_from_the_last_stage():
    assert split([1.0] * 10, 4, 0.0, 2.0) == ((0, 3), (3, 6), (6, 9), (9, 10))
    assert split([1.0] * 8, 4, 0.0, 0.0) == ((0, 2), (2, 4), (4, 6), (6, 8))


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
