"""Operators with their shapes, and the order of sources: a table's point, between, beyond, the roofline."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.plan_models import dense, device, sparse, target

from dayzero.data.efficiency import efficiency
from dayzero.data.measured import Library
from dayzero.data.measured.own import own_table
from dayzero.placement.many import Layouts
from dayzero.schema import Layout, ModelSpec
from dayzero.schema.target import Operators as OperatorTimes
from dayzero.stages.plan import plan
from dayzero.stages.plan.times.calls import Call, calls
from dayzero.stages.plan.times.measured import (
    EXTRAPOLATED,
    INTERPOLATED,
    MEASURED,
    ROOFLINE,
    SOURCES,
    Operators,
    Timed,
    Timer,
    told,
)
from dayzero.stages.plan.times.speeds import speeds
from dayzero.stages.plan.times.stage import stage
from dayzero.stages.plan.times.terms import terms
from dayzero.stages.plan.times.work import Step, stage_work

DECODE = Step(phase="decode", sequences=16, tokens=1, context=1024)
PREFILL = Step(phase="prefill", sequences=1, tokens=2048, context=0)
PRODUCTS = """
operator = "linear"
device = "round"
source = "made up"
keys = {{ scheme = "bf16" }}
shape = ["outer", "inner"]
grid = ["tokens"]
rising = ["tokens"]
[rows]
tokens = [8, 16, 64]
outer = [{outer}, {outer}, {outer}]
inner = [{inner}, {inner}, {inner}]
seconds = [1e-3, 2e-3, 8e-3]
"""


def made_calls(model: ModelSpec, layout: Layout | Layouts, step: Step = DECODE, devices: int = 8) -> list[Call]:
    """The calls of all layers."""
    return list(calls(model, layout, target(devices), stage(model, range(len(model.layers))), step))


def timer(found: Library | None = None) -> Timer:
    """On the round device."""
    known = efficiency()
    return Timer(found, target(8), "any", known.generation("sm_90")[0], known.common)


def shaping(found: Library, *classes: str) -> Operators:
    """Tables that shape those classes."""
    shares = speeds(target(8), dense()).known
    return Operators(timer(found), shares, classes)


def one(timed: list[Timed], name: str) -> Timed:
    """The call of that name."""
    return next(each for each in timed if each.call.name == name)


@pytest.fixture
def tables(tmp_path: Path) -> Library:
    """A user's table of products of the widths of `dense`'s output projection: 576 x 576."""
    path = tmp_path / "mine.toml"
    path.write_text(PRODUCTS.format(outer=576, inner=576))
    return Library(None, (own_table(path),))


def test_products_with_one_input_are_one_and_ranks_have_their_part() -> None:
    found = {call.name: call for call in made_calls(dense(), Layout(tp=1))}
    together = found["attention.q+attention.k+attention.v"]
    assert together.axes == {"tokens": 16, "outer": (9 + 3 + 3) * 64, "inner": 576} and together.times == 30
    assert found["mlp.gate+mlp.up"].axes["outer"] == 2 * 1536
    assert found["embedding"].times == 1 and found["embedding"].axes["outer"] == 49152  # the tied head, once
    split = {call.name: call for call in made_calls(dense(), Layout(tp=3))}
    assert split["attention.q+attention.k+attention.v"].axes["outer"] == (3 + 1 + 1) * 64
    assert split["attention.o"].axes == {"tokens": 16, "outer": 576, "inner": 192}
    assert split["a"].axes["heads"] == 3 and split["a"].axes["kv_heads"] == 1


def test_experts_are_asked_for_as_tables_have_them() -> None:
    found = {call.name: call for call in made_calls(sparse(), Layout(tp=2, dp=4, ep=8))}
    assert found["experts"].axes == {"tokens": 64.0, "hidden": 1024, "width": 512, "top_k": 4.0, "experts": 64,
                                     "expert_tp": 1, "ep": 8}  # the tokens of the four replicas
    assert found["dispatch"].axes["tokens"] == 8.0 and found["dispatch"].times == 8
    assert found["all-reduce"].axes == {"ranks": 2, "bytes": 16 * 1024 * 2} and found["all-reduce"].times == 16


@pytest.mark.parametrize("step", [DECODE, PREFILL])
@pytest.mark.parametrize("layout", [Layout(), Layout(tp=2), Layout(tp=4, dp=2, ep=8), Layout(tp=4, attention_tp=2)])
@pytest.mark.parametrize("model", [dense(), sparse()], ids=["dense", "sparse"])
def test_calls_have_the_flops_of_the_counted_work(model: ModelSpec, layout: Layout, step: Step) -> None:
    from dayzero.stages.plan.times.calls import work

    held = stage(model, range(len(model.layers)))
    counted: dict[str, float] = {}
    for item in stage_work(model, layout, target(8), held, step):
        counted[item.group] = counted.get(item.group, 0.0) + float(item.flops)
    found: dict[str, float] = {}
    for call in made_calls(model, layout, step):
        found[call.kind] = found.get(call.kind, 0.0) + float(work(call, call.axes)[0] * call.times)
    for kind in ("linear", "expert", "cache"):
        if kind in counted:
            assert found[kind] == pytest.approx(counted[kind], rel=0.03), kind


def test_the_order_of_sources(tables: Library) -> None:
    timed = timer(tables).times(made_calls(dense(), Layout()))
    point = one(timed, "attention.o")
    assert point.seconds == pytest.approx([2e-3]) and point.source == [MEASURED] and point.tables == ("made up",)
    between = one(timer(tables).times(made_calls(dense(), Layout(), Step(
        phase="decode", sequences=32, tokens=1, context=0))), "attention.o")
    assert between.seconds == pytest.approx([4e-3]) and between.source == [INTERPOLATED]
    wider = one(timed, "mlp.down")  # 576 x 1536
    bare = timer().times(made_calls(dense(), Layout()))
    ratio = one(bare, "mlp.down").seconds / one(bare, "attention.o").seconds
    assert wider.seconds == pytest.approx(2e-3 * ratio) and wider.source == [EXTRAPOLATED]
    attention = one(timed, "a")
    assert attention.source == [ROOFLINE] and attention.seconds == one(bare, "a").seconds
    assert [SOURCES[i] for i in (MEASURED, ROOFLINE)] == ["measured", "roofline"]


def test_less_is_known_further_away(tables: Library) -> None:
    timed = timer(tables).times(made_calls(dense(), Layout()))
    width = {name: float(np.log(one(timed, name).high / one(timed, name).low)[0])
             for name in ("attention.o", "mlp.down", "a")}
    assert 0 < width["attention.o"] < width["mlp.down"] < width["a"]
    assert all((each.low <= each.seconds).all() and (each.seconds <= each.high).all() for each in timed)


def test_what_is_far_from_every_point_is_the_rooflines(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(PRODUCTS.format(outer=8, inner=8))
    timed = timer(Library(None, (own_table(path),))).times(made_calls(dense(), Layout()))
    assert all((each.source == ROOFLINE).all() for each in timed)


def test_nothing_is_faster_than_the_device_states(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(PRODUCTS.format(outer=576, inner=1000).replace("1e-3, 2e-3, 8e-3", "1e-9, 2e-9, 8e-9"))
    timed = one(timer(Library(None, (own_table(path),))).times(made_calls(dense(), Layout())), "attention.o")
    assert timed.source == [EXTRAPOLATED]
    assert timed.seconds[0] >= 2 * 576 * 576 / 1e12  # its weights at 1 TB/s


def test_many_layouts_are_what_each_is_alone(tables: Library) -> None:
    some = [Layout(tp=1), Layout(tp=3), Layout(tp=1, dp=4)]
    model, held = dense(), stage(dense(), range(30))
    together = timer(tables).times(calls(model, Layouts.of(some), target(8), held, DECODE))
    for i, layout in enumerate(some):
        alone = {each.call.name: each for each in timer(tables).times(made_calls(model, layout))}
        for each in together:
            if each.call.name in alone:
                assert each.seconds[i % len(each.seconds)] == pytest.approx(float(alone[each.call.name].seconds[0]))


def test_the_share_of_each_source(tables: Library) -> None:
    shares = told(timer(tables).times(made_calls(dense(), Layout())))
    assert sum(float(np.max(share)) for share in shares.values()) == pytest.approx(1)
    assert shares["measured"] > 0.01


def test_tables_shape_a_pass(tables: Library) -> None:
    model, layout, held = dense(), Layout(), stage(dense(), range(30))
    plain = terms(model, layout, target(1), DECODE, efficiency().common)
    changed = shaping(tables, "linear").corrected(plain, model, layout, held, DECODE)
    mine = sum(each.seconds * each.call.times for each in timer(tables).times(made_calls(model, layout))
               if each.call.kind == "linear")
    bare = sum(each.seconds * each.call.times for each in timer().times(made_calls(model, layout))
               if each.call.kind == "linear")
    assert changed.linear_bytes == pytest.approx(plain.linear_bytes * mine / bare)  # a user's own: in full
    assert changed.operators == pytest.approx(plain.operators * mine / bare)
    assert changed.cache_bytes == plain.cache_bytes


def test_only_the_last_stage_has_the_head() -> None:
    model = dense()
    times = [next(call.times for call in calls(model, Layout(), target(1), stage(model, layers), DECODE)
                  if call.name == "embedding") for layers in (range(15), range(15, 30))]
    assert times == [0, 1]


def test_passes_of_many_layouts_are_shaped_as_each_is_alone(tables: Library) -> None:
    model, held = dense(), stage(dense(), range(30))
    some = [Layout(tp=1), Layout(tp=3), Layout(tp=1, dp=4), Layout(tp=3, dp=2)]
    sequences = np.array([16.0, 16.0, 4.0, 8.0])
    shaped_by, common = shaping(tables, "linear", "collective"), efficiency().common

    def shaped(layout: Layout | Layouts, count: object) -> object:
        step = Step(phase="decode", sequences=count, tokens=1, context=1024)
        plain = terms(model, layout, target(8), step, common)
        return shaped_by.corrected(plain, model, layout, held, step).linear_bytes / plain.linear_bytes

    together = shaped(Layouts.of(some), sequences)
    alone = [float(np.max(shaped(layout, count))) for layout, count in zip(some, sequences, strict=True)]
    assert together == pytest.approx(alone)
    assert len({round(factor, 6) for factor in alone}) == 4


def test_an_exchange_between_nodes_takes_what_tables_say_more() -> None:
    model, held, common = sparse(), stage(sparse(), range(8)), efficiency().common
    inside, across = (terms(model, Layout(dp=8, ep=8), target(*nodes), DECODE, common, held)
                      for nodes in ((8, 1), (4, 2)))
    assert inside.exchanges == across.exchanges == 16 and inside.far == across.far == 0
    # DeepEP, one token a rank, H200: 12 and 13 us in a node, 22 and 26 over two
    assert across.latency - inside.latency == pytest.approx(16 * 12e-6)


def test_collectives_are_compared_with_what_a_pass_counts(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("""
operator = "all_reduce"
device = "round"
source = "made up"
shape = ["ranks"]
grid = ["bytes"]
rows = { ranks = [2, 2], bytes = [1e3, 1e9], seconds = [20e-6, 20e-6] }
""")
    model, held, shares = dense(), stage(dense(), range(30)), speeds(target(8), dense()).known
    for layout, inside in ((Layout(tp=2), True), (Layout(tp=4), False)):  # no table of 4 ranks
        plain = terms(model, layout, target(8), DECODE, shares.common)
        made = shaping(Library(None, (own_table(path),)), "collective").corrected(plain, model, layout, held, DECODE)
        seconds = made.sent / shares.generation.link + 1e-6 * (
            made.reduces * shares.generation.reduce_call + made.reduce_steps * shares.generation.reduce_step)
        assert (seconds == pytest.approx(60 * 20e-6)) is inside
        assert (made.reduces == plain.reduces) is not inside


def test_a_plan_says_which_sources_its_times_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(PRODUCTS.format(outer=576, inner=576))
    monkeypatch.delenv("DAYZERO_MEASURED", raising=False)
    asked = msgspec.structs.replace(target(2), operators=OperatorTimes(times="measured", tables=(str(path),)))
    shaped, fitted = plan(dense(), asked), plan(dense(), target(2))
    best = shaped.candidates[0].tpot_s
    assert "shaped by measured tables of operators (" in best.source and "made up)" in best.source
    assert "roofline" in best.source and "extrapolated" in best.source
    assert "measured" not in fitted.candidates[0].tpot_s.source
    assert best.value > 2 * fitted.candidates[0].tpot_s.value  # products of a millisecond and more
    elsewhere = msgspec.structs.replace(asked, cluster=target(2, on=device(name="other")).cluster)
    assert "measured tables take no part: they do not have other" in plan(dense(), elsewhere).notes


@settings(deadline=None, max_examples=60)
@given(st.floats(1, 4096), st.floats(1, 4096))
def test_more_sequences_are_never_faster(first: float, second: float) -> None:
    low, high = sorted((first, second))
    for step in (DECODE, PREFILL):
        few, many = (timer().times(made_calls(sparse(), Layout(tp=2), Step(
            phase=step.phase, sequences=count, tokens=step.tokens, context=step.context))) for count in (low, high))
        for less, more in zip(few, many, strict=True):
            assert (less.seconds <= more.seconds * (1 + 1e-9)).all(), less.call.name
