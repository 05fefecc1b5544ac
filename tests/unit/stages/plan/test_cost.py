"""Seconds from work and traffic: by hand on a device of round numbers, and monotone in what slows it down."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import dense, device, sparse, target

from dayzero.data.efficiency import efficiency
from dayzero.schema import Layout, OpCall, OpGraph, Phase
from dayzero.stages.plan.cost import OVERHEAD, Cost, Costs, pipeline, roofline
from dayzero.stages.plan.speeds import EXPECTED, speeds
from dayzero.stages.plan.terms import terms
from dayzero.stages.plan.timing import pass_seconds
from dayzero.stages.plan.traffic import Traffic
from dayzero.stages.plan.work import Work, decode_step, prefill_step

DENSE = dense()
WHOLE = ((0, 30),)
HALVES = ((0, 15), (15, 30))


def measured(**changes):
    return device(efficiency=1.0, measured=True, **changes)


def graph(operators):
    phases = {name: Phase(name=name, batch=1, tokens=1, context=1, flops=0, bytes=0, operators=operators)
              for name in ("prefill", "decode")}
    return OpGraph(parameters=0, seconds=0, phases=phases, operators=(), modules=(), control_flow=(), missing=(),
                   layer_kinds=(), source="made by hand")


def total(target_, step, layout=None, split=WHOLE, model=DENSE, traced=None):
    costs = Costs(model, target_, speeds(target_.cluster.device), traced)
    return Cost.sum(costs.stages(layout or Layout(), split, step)).total


def test_an_operator_takes_the_slower_of_arithmetic_and_memory():
    cost = Cost()
    work = [Work(kind="a", scheme="bf16", flops=3e14, bytes=1e12),
            Work(kind="b", scheme="bf16", flops=1e14, bytes=2e12)]
    roofline(cost, work, device(), speeds(measured()))
    assert cost.causes["a"][EXPECTED] == pytest.approx(3) and cost.causes["b"][EXPECTED] == pytest.approx(2)
    assert cost.bounds == {"matrix rate": pytest.approx(3), "memory bandwidth": pytest.approx(2)}


@pytest.mark.parametrize(("model", "layout", "split"), [
    (DENSE, Layout(), WHOLE), (sparse(), Layout(), ((0, 8),)), (sparse(), Layout(tp=4, ep=4), ((0, 8),)),
    (sparse(), Layout(dp=4, ep=4), ((0, 8),)),
])
def test_of_a_datasheet_device_a_step_takes_what_it_takes_in_the_serving_model(model, layout, split):
    """One model of time: the sum over kinds of operators is the pass of `timing`, with what an engine adds to it."""
    known, on = efficiency(), target(4)
    generation, engine = known.generation("")[0], known.engine("any")[0]
    low, high = known.interval("together, not measured").tpot
    for step, prefill in ((decode_step(on, 8), False), (prefill_step(on), True)):
        logits = Traffic(model, layout, on.cluster, speeds(on.cluster.device)).logits(step, False)
        fastest, expected, slowest = total(on, step, layout, split, model) - logits
        seconds = pass_seconds(terms(model, layout, on, step, known.common), generation, engine, known.common,
                               prefill=prefill, narrow=0.0)
        added = 0 if prefill else (engine.step + 8 * engine.sequence) * 1e-6
        # by kind of operator each is rounded up by the smooth maximum on its own
        assert expected == pytest.approx(seconds + added, rel=0.03)
        assert fastest == pytest.approx(expected * low) and slowest == pytest.approx(expected * high)


def test_measured_rates_are_the_value_and_stated_ones_an_upper_bound():
    step = decode_step(target(), 1)
    fastest, expected, slowest = total(target(on=measured()), step)
    assert expected == pytest.approx(1.5 * fastest) == pytest.approx(slowest / 1.5)
    # A stated efficiency is a statement about a datasheet, however high: no kernel is faster than its rates.
    fastest, expected, slowest = total(target(on=device(efficiency=1.0)), step)
    assert expected == pytest.approx(fastest) == pytest.approx(slowest / 1.5)
    # 269 MB of weights and 27 MB of cache at 1 TB/s, and the few bytes between.
    assert expected == pytest.approx(2.97e-4, rel=0.02)


def test_overhead_is_operators_times_their_cost():
    on = target(on=measured(op_overhead=1e-5))
    step = decode_step(on, 1)
    assert total(on, step, traced=graph(600))[EXPECTED] - total(on, step)[EXPECTED] == pytest.approx(600 * 1e-5)
    stage = Costs(DENSE, on, speeds(on.cluster.device), graph(600)).stages(Layout(pp=2), HALVES, step)[0]
    assert stage.causes[OVERHEAD][EXPECTED] == pytest.approx(300 * 1e-5)


def test_an_unknown_overhead_is_in_the_slow_end_alone():
    """400 products and 200 views, which launch nothing, where no overhead is stated: 1 us for each product."""
    call = OpCall(op="aten.mm", module="", module_type="", kind="linear", count=400, inputs=(), outputs=(),
                  dtype="bf16", flops=1, bytes=1, phase="decode")
    view = msgspec.structs.replace(call, op="aten.view", count=200, bytes=0)
    traced = msgspec.structs.replace(graph(600), operators=(call, view))
    on = target(on=device(efficiency=1.0))
    step = decode_step(on, 1)
    added = total(on, step, traced=traced) - total(on, step)
    assert list(added) == pytest.approx([0, 0, 400e-6])


def test_tensor_parallel_traffic_by_hand():
    on = target(8, on=measured())
    step = decode_step(on, 10)
    traffic = Traffic(DENSE, Layout(tp=4), on.cluster, speeds(on.cluster.device))
    # 30 layers, 2 all-reduces of 10 * 576 * 2 bytes; 4 messages each of 10 us, 2 * 3/4 of the buffer at 100 GB/s.
    expected = 60 * (4 * 1e-5 + 1.5 * 11_520 / 1e11)
    assert traffic.tensor_parallel(range(30), step)[EXPECTED] == pytest.approx(expected)


def test_expert_traffic_only_leaves_the_tp_group_when_experts_do():
    on, model = target(8, 2, on=measured()), sparse()
    step = decode_step(on, 16)
    inside = Traffic(model, Layout(tp=8, dp=2, ep=8), on.cluster, speeds(on.cluster.device))
    assert not inside.expert_parallel(range(8), step).any()
    across = Traffic(model, Layout(tp=1, dp=16, ep=16), on.cluster, speeds(on.cluster.device))
    copies = 16 * (1 - (15 / 16) ** 4)  # ranks that a token's 4 experts lie on
    sent = 16 * copies * 15 / 16 * 1024 * 2
    assert across.expert_parallel(range(8), step)[EXPECTED] == pytest.approx(16 * (2e-5 + sent / 2e10))


def test_expert_traffic_is_shared_by_the_ranks_of_a_tp_group():
    on, model = target(8, 2, on=measured()), sparse()
    step = decode_step(on, 16)
    traffic = Traffic(model, Layout(tp=4, dp=4, ep=16), on.cluster, speeds(on.cluster.device))
    copies = 16 * (1 - (15 / 16) ** 4)
    sent = 16 / 4 * copies * 15 / 16 * 1024 * 2  # each tp rank sends a quarter of the replica's tokens
    assert traffic.expert_parallel(range(8), step)[EXPECTED] == pytest.approx(16 * (2e-5 + sent / 2e10))


def test_a_scheme_without_rate_takes_the_time_of_memory():
    cost = Cost()
    roofline(cost, [Work(kind="a", scheme="f32", flops=1e20, bytes=1e12)], device(), speeds(measured()))
    assert cost.causes["a"][EXPECTED] == pytest.approx(1) and cost.bounds == {"memory bandwidth": pytest.approx(1)}


def test_a_group_that_lies_across_nodes_takes_the_network():
    on = target(8, 3, on=measured())
    step = decode_step(on, 1)
    times = {tp: Traffic(DENSE, Layout(tp=tp), on.cluster, speeds(on.cluster.device)).tensor_parallel(range(1), step)
             for tp in (3, 4)}
    assert times[3][EXPECTED] == pytest.approx(2 * (4 * 2e-5 + 4 / 3 * 1152 / 2e10))
    assert times[4][EXPECTED] == pytest.approx(2 * (4 * 1e-5 + 3 / 2 * 1152 / 1e11))


def test_collectives_of_a_datasheet_device_take_calls_and_the_share_of_the_link():
    on, known = target(8, 2), efficiency()
    own, step = known.generation("")[0], decode_step(on, 10)
    traffic = Traffic(DENSE, Layout(tp=4), on.cluster, speeds(on.cluster.device))
    expected = 60 * ((own.reduce_call + 2 * own.reduce_step) * 1e-6 + 1.5 * 11_520 / (1e11 * own.link))
    assert traffic.tensor_parallel(range(30), step)[EXPECTED] == pytest.approx(expected)
    across = Traffic(DENSE, Layout(tp=16), on.cluster, speeds(on.cluster.device))
    calls = (own.reduce_call + 4 * own.reduce_step + known.common.far_call) * 1e-6
    expected = 60 * (calls + 15 / 8 * 11_520 / (2e10 * own.link))
    assert across.tensor_parallel(range(30), step)[EXPECTED] == pytest.approx(expected)


@pytest.mark.parametrize(("layout", "across"), [
    (Layout(pp=3, dp=8), [True, True]),  # devices 6 7 | 8 of the third replica, 15 | 16 17 of the sixth
    (Layout(pp=4, dp=6), [False, False, False]),  # two replicas in a node
    (Layout(tp=3, pp=2, dp=4), [True]),  # ranks 2, 1 of 8 and so on: a stage lies across an edge
    (Layout(tp=4, pp=6), [False, True, False, True, False]),
    (Layout(tp=8, pp=3), [True, True]), (Layout(tp=12, pp=2), [True]),
])
def test_a_stage_is_followed_across_the_network_if_it_is_in_any_replica(layout, across):
    on = target(8, 3, on=measured())
    traffic = Traffic(DENSE, layout, on.cluster, speeds(on.cluster.device))
    step = decode_step(on, 1)
    latency = [2e-5 if one else 1e-5 for one in across]
    bandwidth = [2e10 if one else 1e11 for one in across]
    for stage in range(layout.pp - 1):
        expected = latency[stage] + 1152 / layout.tp / bandwidth[stage]
        assert traffic.to_next_stage(stage, step)[EXPECTED] == pytest.approx(expected)


def test_stages_cross_the_network_where_a_node_ends():
    on = target(2, 2, on=measured())
    step = decode_step(on, 1)
    traffic = Traffic(DENSE, Layout(pp=4), on.cluster, speeds(on.cluster.device))
    inside, across = (traffic.to_next_stage(stage, step)[EXPECTED] for stage in (0, 1))
    assert inside == pytest.approx(1e-5 + 1152 / 1e11)
    assert across == pytest.approx(2e-5 + 1152 / 2e10)


def test_a_pipeline_waits_for_its_slowest_stage():
    fast, slow = (Cost({"a": np.full(3, seconds)}, {"memory bandwidth": seconds}) for seconds in (1.0, 3.0))
    assert pipeline([fast, slow], micro_batches=1).total[EXPECTED] == 4  # a token passes both
    assert pipeline([fast, slow], micro_batches=2).total[EXPECTED] == 6  # the slow stage handles two micro-batches


def test_expected_causes_sum_to_the_total():
    costs = Costs(DENSE, target(), speeds(device()), None).stages(Layout(), WHOLE, prefill_step(target()))
    assert sum(costs[0].bounds.values()) == pytest.approx(costs[0].total[EXPECTED])


@given(st.integers(1, 4096), st.integers(1, 4096))
def test_prefill_time_rises_with_tokens(few, more):
    targets = [target(input_tokens=tokens) for tokens in sorted((few, more))]
    times = [total(one, prefill_step(one)) for one in targets]
    assert (times[0] <= times[1]).all()


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 64))
def test_decode_time_rises_with_context_and_sequences(near, far, sequences):
    near, far = sorted((near, far))
    times = [total(target(), decode_step(target(input_tokens=context), count))
             for context, count in ((near, sequences), (far, sequences), (far, sequences + 1))]
    assert (times[0] <= times[1]).all() and (times[1] <= times[2]).all()


@given(st.floats(1e9, 1e13), st.floats(1.0, 100.0), st.sampled_from(["memory_bandwidth", "link"]))
def test_time_falls_with_bandwidth(bandwidth, factor, which):
    def seconds(value):
        link = msgspec.structs.replace(device().links[0], bandwidth=value)
        on = device(links=(link,)) if which == "link" else device(memory_bandwidth=value)
        there = target(8, on=on)
        return total(there, decode_step(there, 3), Layout(tp=3))

    assert (seconds(bandwidth * factor) <= seconds(bandwidth)).all()
