"""Plans for random arrivals, for shared prefixes, for proposed tokens and for several precisions."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.plan_models import attention_families, dense, device, family, sparse, target

from dayzero.placement.many import Layouts
from dayzero.schema import Layout, Limits, ModelSpec, Plan, Target, from_json, to_json
from dayzero.schema.target import EngineRequest
from dayzero.stages.plan import plan
from dayzero.stages.plan.evaluate import Evaluated, evaluate
from dayzero.stages.plan.words.explain import summed_up

SOME = Layouts.of([Layout(tp=1, dp=4), Layout(tp=2, dp=2), Layout(tp=4), Layout(pp=2, dp=2), Layout(pp=4),
                   Layout(tp=2, pp=2)])


def figures(model: ModelSpec, there: Target) -> Evaluated:
    return evaluate(model, there, SOME)


@pytest.mark.parametrize("efficiency", [None, 0.5])
@pytest.mark.parametrize("model", [dense(), sparse()], ids=["dense", "sparse"])
def test_few_arrivals_are_one_request_at_a_time(model: ModelSpec, efficiency: float | None) -> None:
    chip = device(efficiency=efficiency)
    alone = figures(model, target(4, on=chip, concurrency=1, output_tokens=100_000))
    few = figures(model, target(4, on=chip, concurrency=1, output_tokens=100_000, arrival_rate=1e-9))
    assert few.arrivals["stable"].all()
    assert few.ttft_s == pytest.approx(alone.ttft_s, rel=3e-3)
    assert few.tpot_s == pytest.approx(alone.tpot_s, rel=1e-2)  # a replica that works has one sequence, not a quarter
    assert few.tokens_per_s == pytest.approx(np.full(len(SOME), 1e-9 * 100_000))


@pytest.mark.parametrize("efficiency", [None, 0.5])
def test_more_arrivals_are_slower_until_they_are_too_many(efficiency: float | None) -> None:
    made = [figures(dense(), target(4, on=device(efficiency=efficiency), arrival_rate=rate))
            for rate in (0.1, 1.0, 5.0, 1e4)]
    for before, after in pairwise(made[:3]):
        both = before.arrivals["stable"] & after.arrivals["stable"]
        assert both.any()
        assert (after.ttft_s[both] >= before.ttft_s[both]).all()
        assert (after.tpot_s[both] >= before.tpot_s[both]).all()
        assert (after.arrivals["sequences"][both] > before.arrivals["sequences"][both]).all()
    assert not made[-1].arrivals["stable"].any()
    assert (made[0].arrivals["capacity"] == made[-1].arrivals["capacity"]).all()


def test_a_plan_for_arrivals() -> None:
    made = plan(dense(), target(2, arrival_rate=2.0))
    best = made.best
    assert best is not None and best.arrivals is not None
    assert best.arrivals.capacity > best.arrivals.rate == 2.0
    assert best.tokens_per_s.value == pytest.approx(2.0 * 256)
    spread = best.arrivals.ttft_percentiles
    assert list(spread) == ["p50", "p90", "p99"]
    assert spread["p50"] <= spread["p90"] <= spread["p99"]
    assert best.arrivals.sequences == pytest.approx(2.0 * 255 * best.tpot_s.value, rel=1e-6)
    assert to_json(from_json(to_json(made), Plan)) == to_json(made)


def test_layouts_that_do_not_keep_up_are_rejected() -> None:
    made = plan(dense(), target(2, arrival_rate=1e5))
    assert not made.candidates
    assert {one.rule for one in made.rejected} >= {"arrival-rate"}
    assert made.families[0].rule == "arrival-rate" and "keeps up with" in made.families[0].message


def test_nothing_shared_is_the_plain_case() -> None:
    plain, none = (figures(sparse(), target(4, **more)) for more in ({}, {"prefix_hit": 0.0}))
    assert (plain.ttft_s == none.ttft_s).all() and (plain.need_bytes == none.need_bytes).all()


def test_more_found_in_the_cache_is_faster_and_smaller() -> None:
    made = [figures(sparse(), target(4, concurrency=64, input_tokens=4096, prefix_hit=hit))
            for hit in (0.0, 0.25, 0.5, 0.9)]
    for before, after in pairwise(made):
        assert (after.ttft_s <= before.ttft_s).all() and (after.ttft_s < before.ttft_s).any()
        assert (after.causes["kv_cache"] <= before.causes["kv_cache"]).all()
        assert (after.max_sequences >= before.max_sequences).all()
        assert (after.tpot_s <= before.tpot_s * (1 + 1e-9)).all()


def test_what_is_shared_is_cached_once() -> None:
    """64 sequences of 4096 + 256 tokens, of which half of the prompt is shared: 64 x 2304 + 2048 tokens."""
    plain, half = (evaluate(dense(), target(1, concurrency=64, input_tokens=4096, prefix_hit=hit),
                            Layouts.of([Layout()])) for hit in (0.0, 0.5))
    assert half.causes["kv_cache"][0] / plain.causes["kv_cache"][0] == pytest.approx(
        (64 * 2304 + 2048) / (64 * 4352), rel=1e-6)


def speculating(there: Target) -> Target:
    facts = EngineRequest(speculative="mtp")
    return msgspec.structs.replace(there, engine=msgspec.structs.replace(there.engine, facts=facts))


def with_draft(model: ModelSpec) -> ModelSpec:
    """With one multi-token-prediction layer of attention alone."""
    own = [msgspec.structs.replace(one, role=f"mtp.{one.role}", layers=(len(model.layers),))
           for one in [*attention_families(1, 1024, 16, 4, 64), family("norm.attention", (1024,), 1)]]
    return msgspec.structs.replace(model, families=(*model.families, *own), mtp_layers=1)


@pytest.mark.parametrize("efficiency", [None, 0.5])
def test_proposed_tokens(efficiency: float | None) -> None:
    model, chip = with_draft(sparse()), device(efficiency=efficiency)
    plain = figures(model, speculating(target(4, on=chip)))
    slow, fast = (figures(model, speculating(target(4, on=chip, draft_tokens=3, acceptance_length=length)))
                  for length in (1.0, 4.0))
    assert (slow.tpot_s > plain.tpot_s).all()  # four rows and three drafts for one token
    assert (fast.tpot_s < slow.tpot_s).all()
    assert (fast.need_bytes > plain.need_bytes).any() and (fast.need_bytes >= plain.need_bytes).all()
    uncounted = figures(sparse(), speculating(target(4, on=chip, draft_tokens=3, acceptance_length=1.0)))
    assert (uncounted.tpot_s < slow.tpot_s).all()


def test_precisions_are_compared() -> None:
    made = plan(sparse(), target(2, precisions=("bf16", "fp8", "int4")))
    assert [one.precision for one in made.variants] == ["bf16", "fp8", "int4"]
    assert [one.released for one in made.variants] == [True, False, False]
    sizes = [one.checkpoint_bytes for one in made.variants]
    assert sizes == sorted(sizes, reverse=True)
    assert made.variants[0].tpot_s == made.candidates[0].tpot_s
    assert plan(sparse(), target(2)).variants == ()
    assert to_json(from_json(to_json(made), Plan)) == to_json(made)


def test_a_plan_with_weights_in_the_host_s_memory() -> None:
    chip = device(memory_bytes=200 * 10**6, host_bandwidth=1e10)
    made = plan(dense(), target(1, on=chip, concurrency=1, input_tokens=32, output_tokens=8))
    best = made.best
    assert best is not None and best.offload is not None
    assert best.need_bytes <= best.usable_bytes
    assert best.tpot_s.value > best.offload.bound_s > 0
    assert best.decode_seconds["weights and cache from outside"] == pytest.approx(best.offload.bound_s)
    assert sum(best.decode_seconds.values()) == pytest.approx(best.tpot_s.value, rel=0.01)
    assert to_json(from_json(to_json(made), Plan)) == to_json(made)


def test_workers_apart_are_shown_beside() -> None:
    there = target(8, concurrency=256, input_tokens=4096)
    made = plan(sparse(), there)
    assert made.apart
    first = made.apart[0]
    assert first.prefill_workers * first.prefill.world_size + first.decode_workers * first.decode.world_size <= 8
    assert first.devices <= 8 and first.transfer_s > 0
    assert first.tokens_per_s.low < first.tokens_per_s.value < first.tokens_per_s.high
    answer = there.workload.output_tokens
    rates = [float(f"{one.tokens_per_s.value / answer:.3g}") for one in made.apart]  # as far as the order looks
    assert rates == sorted(rates, reverse=True)
    assert len({(one.prefill, one.decode) for one in made.apart}) == len(made.apart)
    assert plan(sparse(), target(1)).apart == ()
    assert plan(sparse(), target(8, on=device(efficiency=0.5))).apart == ()


def test_workers_apart_keep_to_limits_where_any_do() -> None:
    there = target(8, concurrency=256, input_tokens=4096)
    free = plan(sparse(), there).apart
    most = min(one.tpot_s.value for one in free) * 0.9
    bounded = plan(sparse(), msgspec.structs.replace(there, limits=Limits(tpot_s=most))).apart
    assert all(one.within == (one.tpot_s.value <= most) for one in bounded)
    assert bounded[0].within
    few = plan(sparse(), msgspec.structs.replace(there, limits=Limits(devices=4))).apart
    assert few and all(one.devices <= 4 for one in few)


def test_of_layouts_that_keep_up_the_first_answers_soonest() -> None:
    made = plan(dense(), target(4, arrival_rate=1.0))
    whole = [one.ttft_s.value + 255 * one.tpot_s.value for one in made.candidates if one.fits]
    assert len(whole) > 1
    assert all(after >= before * 0.99 for before, after in pairwise(whole))  # alike to three digits


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(rate=st.sampled_from([0.0, 1e-12, 0.3, 50.0, 1e15]), hit=st.sampled_from([0.0, 0.5, 0.999999]),
       drafts=st.sampled_from([0, 1, 100]), accepted=st.floats(0, 1), tokens=st.sampled_from([1, 7, 4096, 2**50]),
       output=st.sampled_from([1, 2, 512, 2**50]), batched=st.sampled_from([1, 512, 8192]),
       efficiency=st.sampled_from([None, 0.5]), host=st.sampled_from([None, 1e10]), devices=st.sampled_from([1, 8]))
def test_figures_are_finite_for_every_workload_that_is_accepted(
        rate: float, hit: float, drafts: int, accepted: float, tokens: int, output: int, batched: int,
        efficiency: float | None, host: float | None, devices: int) -> None:
    there = speculating(target(
        devices, on=device(efficiency=efficiency, host_bandwidth=host), input_tokens=tokens, output_tokens=output,
        max_batched_tokens=batched, arrival_rate=rate, prefix_hit=hit, draft_tokens=drafts,
        acceptance_length=1 + accepted * drafts, precisions=("fp8",)))
    made = plan(with_draft(sparse()), there)
    assert to_json(from_json(to_json(made), Plan)) == to_json(made)
    estimates = [estimate for one in (*made.candidates, *made.apart)
                 for estimate in (one.ttft_s, one.tpot_s, one.tokens_per_s)]
    figures = [getattr(estimate, end) for estimate in estimates for end in ("low", "value", "high")]
    figures += [figure for one in made.candidates if one.arrivals for figure in (
        *one.arrivals.ttft_percentiles.values(), *one.arrivals.gap_percentiles.values(), one.arrivals.capacity)]
    assert all(0 < figure < np.inf for figure in figures)
    assert made.candidates or made.rejected


def test_workers_apart_that_are_ahead_are_spoken_of() -> None:
    made = plan(sparse(), target(8, concurrency=256, input_tokens=4096))
    first, best = made.apart[0], made.best
    assert best is not None
    ahead = msgspec.structs.replace(first, tokens_per_s=msgspec.structs.replace(
        first.tokens_per_s, value=1.2 * best.tokens_per_s.value))
    alike = msgspec.structs.replace(first, tokens_per_s=best.tokens_per_s)
    said = [summed_up(msgspec.structs.replace(made, apart=(one,))).summary for one in (ahead, alike)]
    assert any("Workers apart give 20% more tokens/s" in text for text in said[0])
    assert not any("Workers apart" in text for text in said[1])
