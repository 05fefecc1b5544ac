"""The search for training: what comes first, what is rejected, and what a plan says."""

import msgspec
import pytest
from tests.support.plan_models import dense, device, sparse, target

from dayzero.errors import LayoutError, TargetError
from dayzero.schema import Layout, Limits, from_json, to_json
from dayzero.schema.plan import Plan
from dayzero.stages.plan import overview, plan, to_contract


def training(devices=8, nodes=1, **changes):
    return target(devices, nodes, **({"kind": "train", "global_batch": 64, "input_tokens": 2048} | changes))


def test_small_models_are_trained_by_replicas_alone():
    found = plan(dense(), training())
    assert found.best is None and found.trained is not None
    assert found.trained.layout.tp == found.trained.layout.pp == 1 and found.trained.layout.dp == 8
    assert found.training[0].step_s.value == min(one.step_s.value for one in found.training if one.fits)
    assert found.trained.tokens_per_s.value == pytest.approx(64 * 2048 / found.trained.step_s.value)


def test_figures_of_a_candidate_agree():
    best = plan(dense(), training(total_tokens=10**9)).trained
    assert sum(best.step_seconds.values()) == pytest.approx(best.step_s.value)
    assert best.days.value == pytest.approx(10**9 / best.tokens_per_s.value / 86400)
    assert 0 < best.mfu < 1 and best.step_s.low < best.step_s.value < best.step_s.high
    assert best.need_bytes == sum(best.bytes_per_device.values()) <= best.usable_bytes


def test_less_memory_takes_recomputation_or_stages_until_nothing_fits():
    room = plan(dense(), training(1, global_batch=8)).trained
    tight = plan(dense(), training(1, global_batch=8, on=device(memory_bytes=5 * 10**9))).trained
    assert room.recompute == "none" and tight.recompute != "none"
    none = plan(dense(), training(1, on=device(memory_bytes=10**9)))
    assert none.trained is None and "Does not fit" in none.training[0].explanation


def test_experts_are_spread_and_linear_attention_is_not_cut_along_the_sequence():
    found = plan(sparse(), training(8, 4))
    assert any(one.layout.ep > 1 for one in found.training)
    model = sparse()
    linear = {"a": type(model.attentions["a"])(kind="linear", heads=16, kv_heads=16, head_dim=64, v_head_dim=64)}
    states = plan(msgspec.structs.replace(model, attentions=linear), training(8))
    assert {one.layout.cp for one in states.training} == {1}


def test_what_cannot_be_planned():
    with pytest.raises(TargetError, match="batch"):
        plan(dense(), training(global_batch=0))
    with pytest.raises(TargetError, match="no rate"):
        plan(dense(), training(on=device(flops={"int8": 1e12})))
    with pytest.raises(TargetError, match="nothing is trained in int4"):
        plan(dense(), training(scheme="int4"))
    with pytest.raises(LayoutError):
        plan(dense(), training(layouts=(Layout(tp=3),)))
    with pytest.raises(TargetError, match="no layout can share a batch of 3 sequences"):
        plan(dense(), training(global_batch=3, input_tokens=2047, layouts=(Layout(dp=8),)))
    odd = training(global_batch=4, input_tokens=2047, layouts=(Layout(dp=8), Layout(pp=2, dp=4)))
    found = plan(dense(), odd)  # sequences of 2047 tokens cannot be cut, so that eight replicas share four of them
    assert [one.layout for one in found.training] == [Layout(pp=2, dp=4)] and found.rejected[0].rule == "batch"


def test_schedules_without_bubbles_are_taken_where_they_help():
    found = plan(dense(), training(global_batch=8, layouts=(Layout(pp=8), Layout(dp=8))))
    piped = next(one for one in found.training if one.layout.pp == 8)
    alone = next(one for one in found.training if one.layout.pp == 1)
    assert piped.bubble > 0.1 and piped.schedule == "zero-bubble" and "zero-bubble" in piped.explanation
    assert alone.bubble == 0 and "zero-bubble" not in alone.explanation
    only = plan(dense(), training(global_batch=8, layouts=(Layout(pp=8),)))
    assert any(note.startswith("without a zero-bubble schedule the best is pp=8, a step ") for note in only.notes)
    assert piped.comparison.startswith("loses ") and "pipeline bubble" in piped.comparison


def test_other_rates_and_the_smallest_cluster_are_told():
    found = plan(dense(), training())
    slower = next(one for one in found.sensitivity if one.resource == "matrix rate" and one.factor == 0.8)
    assert slower.after["step_s"] > slower.before["step_s"] == pytest.approx(found.training[0].step_s.value)
    assert not found.smallest
    none = plan(sparse(), training(1, on=device(memory_bytes=6 * 10**9)))
    assert not none.trained and none.smallest[0].devices == 4
    alone = msgspec.structs.replace(training(1, on=device(memory_bytes=10**9)).cluster, network=None)
    lost = plan(sparse(), msgspec.structs.replace(training(1), cluster=alone)).smallest[0]
    assert lost.layout is None and "network" in lost.reason


def test_a_layout_of_the_target_is_taken_as_it_is():
    found = plan(dense(), training(layouts=(Layout(pp=2, dp=4, cp=2),)))
    assert [one.layout for one in found.training] == [Layout(pp=2, dp=4, cp=2)]


def test_layouts_that_are_asked_about_are_kept_with_their_rank():
    full = plan(dense(), training())
    last = [one.layout for one in full.training if one.fits][-1]
    asked = plan(dense(), training(), top=1, explain=(msgspec.structs.replace(last, cp=1),))
    rank = 1 + [one.layout for one in full.training].index(last)
    assert rank > 2 and len(asked.training) == 2 and asked.training[1].layout == last
    assert asked.training[1].explanation.startswith(f"Number {rank} of ")


def test_an_assumed_network_is_told():
    stated = training(8, 2)
    found = plan(dense(), stated)
    assert not any("network between nodes is not stated" in note for note in found.notes)
    silent = msgspec.structs.replace(stated, cluster=msgspec.structs.replace(stated.cluster, network=None))
    found = plan(dense(), silent)
    assert any("network between nodes is not stated: 400 Gb/s" in note for note in found.notes)
    slower = next(one for one in found.sensitivity if one.resource == "link bandwidth" and one.factor == 0.8)
    assert slower.after["step_s"] > slower.before["step_s"]


@pytest.mark.parametrize(("most", "world"), [(40, 40), (20, 16), (4, 4)])
def test_no_more_devices_are_taken_than_may_be(most, world):
    on = msgspec.structs.replace(training(8, 5), limits=Limits(devices=most, tpot_s=0.1))
    found = plan(dense(), on)
    assert {one.layout.world_size for one in found.training} == {world}
    assert any(f"no more than {most} may be taken" in note for note in found.notes) is (most < 40)
    assert any("times to tokens" in note for note in found.notes) and found.sensitivity


def test_a_plan_is_told_and_kept():
    found = plan(dense(), training())
    told = to_contract(found)["plans"][0]
    assert told["step_s"] == found.training[0].step_s.value and told["ttft_s"] is None
    assert told["tokens_per_s_per_device"]["value"] == pytest.approx(found.training[0].tokens_per_s.value / 8)
    assert from_json(to_json(found), Plan) == found
    assert overview(found) is not None
