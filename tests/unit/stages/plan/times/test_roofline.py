"""Seconds at one share of the rates: by hand on a device of round numbers, and monotone in what slows it down."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import dense, device, target

from dayzero.placement.many import Layouts
from dayzero.schema import Layout, OpCall, OpGraph, Phase
from dayzero.stages.plan.times.hops import hops
from dayzero.stages.plan.times.roofline import OVERHEAD, Cost, Roofline
from dayzero.stages.plan.times.speeds import EXPECTED, speeds
from dayzero.stages.plan.times.stage import rows
from dayzero.stages.plan.times.work import Work, decode_step, prefill_step

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


def roofline(target_, layout=None, split=WHOLE, model=DENSE, traced=None):
    layouts = Layouts.of([layout or Layout(pp=len(split))])
    held = rows(model, layouts, lambda model, pp: split)
    return Roofline(model, target_, speeds(target_, model), traced, layouts, held,
                    hops(target_.cluster, layouts, held))


def total(target_, step, layout=None, split=WHOLE, model=DENSE, traced=None):
    made = roofline(target_, layout, split, model, traced)
    return made.one_by_one(made.stages(step), step).total[:, 0]


def test_an_operator_takes_the_slower_of_arithmetic_and_memory():
    cost = Cost()
    work = [Work(kind="a", group="linear", scheme="bf16", flops=3e14, bytes=1e12),
            Work(kind="b", group="linear", scheme="bf16", flops=1e14, bytes=2e12)]
    roofline(target(on=measured())).compute(cost, work)
    assert np.all(cost.causes["a"][EXPECTED] == 3) and np.all(cost.causes["b"][EXPECTED] == 2)
    assert np.all(cost.bounds["matrix rate"] == 3) and np.all(cost.bounds["memory bandwidth"] == 2)


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
    halves = roofline(on, Layout(pp=2), HALVES, traced=graph(600)).stages(step)
    assert halves.causes[OVERHEAD][EXPECTED] == pytest.approx([300 * 1e-5] * 2)


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


def test_a_scheme_without_rate_takes_the_time_of_memory():
    cost = Cost()
    roofline(target(on=measured())).compute(
        cost, [Work(kind="a", group="linear", scheme="f32", flops=1e20, bytes=1e12)])
    assert np.all(cost.causes["a"][EXPECTED] == 1) and np.all(cost.bounds["memory bandwidth"] == 1)
    assert not np.any(cost.bounds["matrix rate"])


def test_a_pipeline_waits_for_its_slowest_stage():
    """Of 30 layers the last stage has 24: with as many micro-batches as stages it is what others wait for."""
    on, split = target(2, on=measured()), ((0, 6), (6, 30))
    step = decode_step(on, 4)
    made = roofline(on, Layout(pp=2), split)
    each = made.stages(step).total[EXPECTED]
    one, two = (made.pipeline(step, np.array([count])).total[EXPECTED, 0] for count in (1, 2))
    assert one == pytest.approx(made.one_by_one(made.stages(step), step).total[EXPECTED, 0]) == pytest.approx(sum(each))
    assert two == pytest.approx(2 * each[1]) and each[1] > 3 * each[0]


def test_expected_causes_sum_to_the_total():
    made = roofline(target(2, on=measured()), Layout(pp=2), HALVES, traced=graph(600))
    cost = made.one_by_one(made.stages(prefill_step(target())), prefill_step(target()))
    assert sum(cost.bounds.values()) == pytest.approx(cost.total[EXPECTED])


@given(st.integers(1, 4096), st.integers(1, 4096))
def test_prefill_time_rises_with_tokens(few, more):
    targets = [target(on=measured(), input_tokens=tokens) for tokens in sorted((few, more))]
    times = [total(one, prefill_step(one)) for one in targets]
    assert (times[0] <= times[1]).all()


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 64))
def test_decode_time_rises_with_context_and_sequences(near, far, sequences):
    near, far = sorted((near, far))
    times = [total(target(on=measured()), decode_step(target(input_tokens=context), count))
             for context, count in ((near, sequences), (far, sequences), (far, sequences + 1))]
    assert (times[0] <= times[1]).all() and (times[1] <= times[2]).all()


@given(st.floats(1e9, 1e13), st.floats(1.0, 100.0), st.sampled_from(["memory_bandwidth", "link"]))
def test_time_falls_with_bandwidth(bandwidth, factor, which):
    def seconds(value):
        link = msgspec.structs.replace(device().links[0], bandwidth=value)
        on = measured(links=(link,)) if which == "link" else measured(memory_bandwidth=value)
        there = target(8, on=on)
        return total(there, decode_step(there, 3), Layout(tp=3))

    assert (seconds(bandwidth * factor) <= seconds(bandwidth)).all()
