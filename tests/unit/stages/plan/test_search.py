"""The search: which layouts are looked at, rejected, kept and ranked."""

import math
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.plan_models import dense, device, family, sparse, target

from dayzero.errors import LayoutError, TargetError
from dayzero.placement import layouts
from dayzero.schema import Attention, Layout, Link
from dayzero.stages.plan import plan

DENSE = dense()


@given(st.integers(1, 300), st.booleans())
def test_every_layout_makes_the_world_size_and_none_comes_twice(world, has_experts):
    found = list(layouts(world, has_experts))
    assert {layout.world_size for layout in found} == {world}
    assert len(found) == len(set(found))
    triples = {(tp, pp) for tp in range(1, world + 1) for pp in range(1, world + 1) if world % (tp * pp) == 0}
    assert {(layout.tp, layout.pp) for layout in found} == triples
    assert has_experts or all(layout.ep == 1 for layout in found)


def test_experts_are_dealt_out_to_whole_groups_or_to_equal_parts_of_one():
    found = set(layouts(12, True))
    assert {Layout(tp=4, dp=3, ep=ep) for ep in (1, 2, 4, 12)} <= found
    assert not {Layout(tp=4, dp=3, ep=ep) for ep in (3, 6)} & found


def test_nine_heads_on_two_ranks():
    # SmolLM2-135M: 9 heads and 3 KV heads cannot be halved; two stages and two replicas are possible.
    found = plan(DENSE, target(2))
    assert {(one.layout.tp, one.rule) for one in found.rejected} == {(2, "shard-heads"), (2, "shard-kv-heads")}
    assert {one.layout.text for one in found.candidates} == {"pp=2", "dp=2"}
    assert all(one.fits for one in found.candidates) and found.evaluated == 3


def test_candidates_are_ranked_and_explained():
    found = plan(sparse(), target(8), top=100)
    assert all(one.fits for one in found.candidates)
    rates = [float(f"{one.tokens_per_s.value:.3g}") for one in found.candidates]
    assert rates == sorted(rates, reverse=True)
    keys = [(-rate, float(f"{one.ttft_s.value:.3g}")) for rate, one in zip(rates, found.candidates, strict=True)]
    assert keys == sorted(keys)
    assert found.best is found.candidates[0]
    legal = found.evaluated - len({one.layout for one in found.rejected})
    assert found.best.explanation.startswith(f"First of {legal} that fit")
    kinds = [(one.layout.tp, one.layout.pp, one.layout.dp, one.layout.ep) for one in found.candidates]
    assert all(sum(kind[:3] == other[:3] and 1 < other[3] <= other[0] for other in kinds) <= 1 for kind in kinds)
    for one in found.candidates:
        assert one.tpot_s.low <= one.tpot_s.value <= one.tpot_s.high
        assert one.ttft_s.low <= one.ttft_s.value <= one.ttft_s.high
        assert sum(one.decode_seconds.values()) == pytest.approx(one.tpot_s.value)
        assert sum(one.prefill_seconds.values()) == pytest.approx(one.ttft_s.value)
        assert len(one.bytes_per_stage) == len(one.stages) == one.layout.pp
        assert one.need_bytes == max(sum(stage.values()) for stage in one.bytes_per_stage)


def test_what_lacks_memory_is_kept_and_comes_last():
    # 0.27 GB of weights: half of them fit, with pp or tp; a whole copy does not.
    small = target(3, on=device(memory_bytes=300_000_000), concurrency=3)
    found = plan(DENSE, small)
    assert [one.fits for one in found.candidates] == [True, True, False]
    assert found.candidates[-1].layout == Layout(dp=3)
    assert found.candidates[-1].max_sequences < 3 and "Does not fit" in found.candidates[-1].explanation
    assert plan(DENSE, target(1, on=device(memory_bytes=1000))).best is None


def test_as_many_sequences_fit_as_it_says():
    on = device(memory_bytes=2 * 10**9)
    room = plan(DENSE, target(1, on=on)).candidates[0].max_sequences
    # Activations are those of a full prefill step from eight sequences on, so only cache and logits grow.
    fits = [plan(DENSE, target(1, on=on, concurrency=count)).candidates[0].fits for count in (room, room + 1)]
    assert fits == [True, False]


def test_as_many_sequences_fit_as_it_says_where_attention_is_shared_by_fewer():
    on, layout = device(memory_bytes=2 * 10**9), (Layout(tp=3, attention_tp=1),)
    room = plan(DENSE, target(3, on=on, layouts=layout)).candidates[0].max_sequences
    fits = [plan(DENSE, target(3, on=on, layouts=layout, concurrency=count)).candidates[0].fits
            for count in (room, room + 3)]
    assert room % 3 == 0 and fits == [True, False]


def test_a_stage_without_cache_limits_nothing():
    halved = device(efficiency=1.0, measured=True)  # stages of as many layers
    none = Attention(kind="none", heads=0, kv_heads=0, head_dim=0, v_head_dim=0)
    layers = [msgspec.structs.replace(DENSE.layers[0], attention="none" if index < 15 else "a") for index in range(30)]
    mixed = msgspec.structs.replace(DENSE, attentions={**DENSE.attentions, "none": none}, layers=tuple(layers))
    both, plain = (plan(one, target(2, on=halved, layouts=(Layout(pp=2),))).candidates[0] for one in (mixed, DENSE))
    assert both.bytes_per_stage[0]["kv_cache"] == 0
    assert both.max_sequences == plain.max_sequences > 0  # the last stage is as before
    # a layer less on the last stage: there is room there, but not on the first
    short = msgspec.structs.replace(mixed, layers=mixed.layers[:29])
    workload = {"layouts": (Layout(pp=2),), "input_tokens": 16, "output_tokens": 16, "concurrency": 1}
    made = plan(short, target(2, on=halved, **workload)).candidates[0]
    first, last = (sum(stage.values()) for stage in made.bytes_per_stage)
    assert last < first
    on = msgspec.structs.replace(halved, memory_bytes=first * 10 // 9 - 1000)
    assert plan(short, target(2, on=on, **workload)).candidates[0].max_sequences == 0


def test_only_the_layouts_that_the_target_asks_for():
    found = plan(DENSE, target(4, layouts=(Layout(pp=4), Layout(tp=2, pp=2))))
    assert [one.layout for one in found.candidates] == [Layout(pp=4)]
    assert {one.layout for one in found.rejected} == {Layout(tp=2, pp=2)}
    with pytest.raises(LayoutError, match="3 devices"):
        plan(DENSE, target(4, layouts=(Layout(tp=3),)))


def test_more_stages_than_layers_are_rejected():
    found = plan(DENSE, target(31))
    assert (Layout(pp=31), "pipeline-stages") in {(one.layout, one.rule) for one in found.rejected}


def test_a_measured_device_is_planned_one_stage_at_a_time():
    on = target(2, on=device(efficiency=1.0, measured=True), concurrency=8)
    pp, dp = (next(one for one in plan(DENSE, on).candidates if one.layout.pp == degree) for degree in (2, 1))
    assert pp.tpot_s.value == pytest.approx(pp.tpot_s.high / 1.5)
    assert pp.tpot_s.source == "measured here"
    assert pp.tokens_per_s.value < dp.tokens_per_s.value
    stated = next(one for one in plan(DENSE, target(2, on=device(efficiency=1.0))).candidates if one.layout.pp == 2)
    assert stated.tpot_s.source == "datasheet at a stated efficiency of 1"
    datasheet = next(one for one in plan(DENSE, target(2)).candidates if one.layout.pp == 2)
    assert datasheet.tpot_s.high > datasheet.tpot_s.value / 0.5 * 0.75
    assert datasheet.tpot_s.source == "datasheet at the shares that devices like it reached"


def test_what_is_not_known_is_said():
    stated = plan(DENSE, target(on=device(efficiency=1.0))).notes
    assert any("overhead of an operator on round is not known" in note for note in stated)
    assert any("only the datasheet of round is known" in note for note in plan(DENSE, target()).notes)
    untraced = plan(DENSE, target(on=device(op_overhead=1e-6, efficiency=1.0)))
    assert any("not traced" in note for note in untraced.notes)


def has_note(found, words):
    return any(words in note for note in found.notes)


def changed(model, families=(), **attention):
    """The model with more families, and with another attention."""
    attentions = {name: msgspec.structs.replace(one, **attention) for name, one in model.attentions.items()}
    return msgspec.structs.replace(model, families=(*model.families, *families), attentions=attentions)


@pytest.mark.parametrize(("words", "model", "changes"), [
    ("sparse attention", changed(DENSE, kind="sparse"), {}),
    ("sparse attention", changed(DENSE, [family("indexer.q", (64, 576), 30)]), {}),
    ("towers", changed(DENSE, [family("vision", (64, 64), 0)]), {}),
    ("no rate for f32: the time of router is that of memory alone",
     changed(DENSE, [msgspec.structs.replace(family("router", (64, 576), 30), scheme="f32")]), {}),
    ("not understood, so in no figure: a, b, c and 1 more",
     msgspec.structs.replace(DENSE, unknowns=("a", "b", "c", "d")), {}),
])
def test_what_is_not_costed_is_said_where_it_applies(words, model, changes):
    assert has_note(plan(model, target(3, **changes)), words)
    assert not has_note(plan(DENSE, target(3)), words)


def test_missing_facts_are_refused():
    with pytest.raises(TargetError, match="no link"):
        plan(DENSE, target(3, on=device(links=())))
    with pytest.raises(TargetError, match="no rate"):
        plan(DENSE, target(on=device(flops={"int8": 1e12})))
    with pytest.raises(TargetError, match="batch of a training step"):
        plan(DENSE, target(kind="train"))


def test_the_search_for_256_devices_takes_seconds():
    started = time.perf_counter()
    found = plan(sparse(layers=64, experts=256, top_k=8), target(8, 32, concurrency=512))
    assert found.evaluated > 200 and time.perf_counter() - started < 10


def test_reports_progress():
    class Listener:
        seen: list[tuple[float, float]] = []

        def update(self, text, done=0.0, total=0.0):
            self.seen.append((done, total))

    plan(DENSE, target(2), progress=Listener())
    assert Listener.seen == [(0, 3), (3, 3)]


def test_the_workload_is_recorded():
    wanted = target(2)
    assert plan(DENSE, wanted).workload == msgspec.to_builtins(wanted.workload)


def test_replicas_add_up():
    one, two = (plan(DENSE, target(count, concurrency=4 * count)).best for count in (1, 2))
    assert two.layout == Layout(dp=2)
    assert two.max_sequences == 2 * one.max_sequences
    seconds = one.ttft_s.value + 255 * one.tpot_s.value  # of a request of 256 tokens, four of which are under way
    assert one.tokens_per_s.value == pytest.approx(4 * 256 / seconds)
    assert two.tokens_per_s.value == pytest.approx(2 * one.tokens_per_s.value)


RATE = st.sampled_from([1.0, 1e3, 1e21])


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(RATE, RATE, RATE, st.sampled_from([None, 1e-6, 1.0]), st.sampled_from([None, 5e-324, 2.0**50]),
       st.sampled_from([1, 2**50]), st.sampled_from([1, 2**50]))
def test_figures_are_finite_for_every_target_that_is_accepted(flops, bandwidth, link, share, overhead, tokens, served):
    links = (Link(name="l", devices=0, bandwidth=link, latency=2.0**50 if overhead else 5e-324, source=""),)
    on = device(memory_bandwidth=bandwidth, flops={"bf16": flops, "f32": flops}, efficiency=share, op_overhead=overhead,
                links=links)
    made = plan(sparse(), target(8, on=on, input_tokens=tokens, output_tokens=tokens, concurrency=served))
    figures = [getattr(estimate, end) for one in made.candidates for end in ("value", "low", "high")
               for estimate in (one.ttft_s, one.tpot_s, one.tokens_per_s)]
    assert figures and all(0 < figure < math.inf for figure in figures)
