"""Passes from terms and shares, and what a client sees of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from tests.support.plan_models import dense, sparse, target

from dayzero.data.efficiency import efficiency
from dayzero.schema import Layout
from dayzero.stages.plan.times.collectives import Calls, Seconds
from dayzero.stages.plan.times.serving import Load, accepted, fewer, served
from dayzero.stages.plan.times.stage import stage
from dayzero.stages.plan.times.terms import Terms, summed, terms
from dayzero.stages.plan.times.timing import pass_seconds, smooth_max
from dayzero.stages.plan.times.traffic import Sent
from dayzero.stages.plan.times.work import Step, stage_work

COMMON = efficiency().common
GENERATION = efficiency().generations[0]
ENGINE = efficiency().engine("any")[0]
STEP = Step(phase="decode", sequences=8, tokens=1, context=500)


def test_terms_are_the_work_at_the_stated_rates() -> None:
    made, on = terms(dense(), Layout(), target(), STEP, COMMON), target()
    work = stage_work(dense(), Layout(), on, stage(dense(), range(len(dense().layers))), STEP)
    device = on.cluster.device
    assert made.linear_bytes + made.cache_bytes + made.pointwise_bytes == pytest.approx(
        sum(item.bytes for item in work) / device.memory_bandwidth)
    assert made.expert_bytes == made.reduces == made.exchanges == 0


def test_terms_of_experts_and_collectives() -> None:
    on = target(4)
    together = terms(sparse(), Layout(tp=4), on, STEP, COMMON)
    assert together.reduces == 2 * together.expert_layers and together.reduce_steps == 2 * together.reduces
    assert together.exchanges == together.far == together.whole_experts == 0 and together.expert_rows > 1
    spread = terms(sparse(), Layout(dp=4, ep=4), on, STEP, COMMON)
    assert spread.exchanges == 2 * spread.expert_layers and spread.reduces == 0 and spread.whole_experts == 1
    assert spread.expert_rows > together.expert_rows  # tokens of all replicas meet


def test_smooth_max() -> None:
    assert smooth_max(3.0, 0.0) == pytest.approx(3.0) and smooth_max(1.0, 1.0) == pytest.approx(2 ** (1 / 3))
    assert smooth_max(1.0, 10.0) == pytest.approx(10.0, rel=0.001)


def test_a_pass_by_hand() -> None:
    one = Terms(linear_bytes=1e-3, operators=100, reduces=10, reduce_steps=20, rows=1e9)
    figures = SimpleNamespace(**dict.fromkeys(GENERATION.__struct_fields__, 1.0))
    figures.linear_bytes, figures.reduce_call, figures.reduce_step, figures.operator_call = 0.5, 7.0, 2.0, 3.0
    engine = SimpleNamespace(operator_factor=2.0, cache_item=1.0, cache_factor=1.0)
    common = SimpleNamespace(imbalance=1.0, exchange_call=0.0, far_call=0.0)
    seconds = pass_seconds(one, figures, engine, common, prefill=False, narrow=0.0)
    assert seconds == pytest.approx(2e-3 + (10 * 7 + 20 * 2 + 100 * 3 * 2) * 1e-6)


def test_the_same_for_one_and_for_many() -> None:
    first, second = (terms(dense(), Layout(), target(), step, COMMON)
                     for step in (STEP, Step(phase="decode", sequences=99, tokens=1, context=9)))
    many = pass_seconds(Terms.stack([first, second]), GENERATION, ENGINE, COMMON, prefill=False, narrow=np.zeros(2))
    for one, value in zip((first, second), many, strict=True):
        assert pass_seconds(one, GENERATION, ENGINE, COMMON, prefill=False, narrow=0.0) == pytest.approx(value)


def load(**changes: float) -> Load:
    """Eight requests of a small model."""
    prompt = terms(dense(), Layout(), target(), Step(phase="prefill", sequences=1, tokens=1000, context=0), COMMON)
    facts = {"prompts": 1, "requests": 8, "held": 8, "groups": 1, "output": 100, "narrow": 0, "wide": 0, "apart": 0,
             "unstated": 0, "batch": 8, **changes}
    return Load(decode=terms(dense(), Layout(), target(), STEP, COMMON), alone=prompt, together=prompt, **facts)


def test_prefills_of_others_delay_tokens_by_their_share_of_an_answer() -> None:
    short, long = (served(load(output=output), GENERATION, ENGINE, COMMON)[0] for output in (10, 1000))  # prompts: 1
    alike = msgspec.structs.replace(ENGINE, apart_decode=1.0)  # as workers that do everything decode
    apart = served(load(output=1e6, apart=1), GENERATION, alike, COMMON)[0]
    assert short - apart == pytest.approx(100 * (long - apart)) and short > long > apart


def test_without_room_in_the_cache_requests_wait_for_answers() -> None:
    tpot, soon = served(load(), GENERATION, ENGINE, COMMON)
    _, late = served(load(held=4), GENERATION, ENGINE, COMMON)
    assert late - soon > 0.9 * 100 * tpot * 0.5


@pytest.mark.parametrize("apart", [0, 1])
def test_a_release_scales_what_it_says_and_not_the_wait_for_room(apart: int) -> None:
    """Without waiting for room all of the time to the first token is scaled; the wait itself is one for answers."""
    slow = msgspec.structs.replace(ENGINE, first=3.0, between=2.0)
    for held in (8, 4):
        tpot, ttft = served(load(held=held, apart=apart), GENERATION, ENGINE, COMMON)
        scaled = served(load(held=held, apart=apart), GENERATION, slow, COMMON)
        assert scaled[0] == pytest.approx(2 * tpot)
        assert scaled[1] == pytest.approx(3 * ttft) if held == 8 else ttft < scaled[1] < 3 * ttft


def held(looks: float, holds: float, fills: float, coming: float) -> float:
    """Mean steps that a prompt is held when prompts come at random: first until new requests are looked at, or until
    `fills` are there or `holds` steps have gone since the first."""
    random, now, waits = np.random.default_rng(1), 0.0, list[float]()
    while len(waits) < 40_000:
        now += random.exponential(1 / coming)
        if holds:
            there = [now]
            while len(there) < fills and (later := there[-1] + random.exponential(1 / coming)) < there[0] + holds:
                there.append(later)
            now = there[-1] if len(there) >= fills else there[0] + holds
            waits += [now - one for one in there]
        else:
            waits.append(looks - now % looks)
    return float(np.mean(waits))


@pytest.mark.parametrize(("looks", "holds", "fills", "output"), [
    (30, 0, 1, 100), (1, 20, 14.4, 2000), (1, 20, 14.4, 50), (1, 60, 8, 25), (1, 60, 8, 1000)])
def test_prompts_are_held_as_a_simulation_holds_them(looks: float, holds: float, fills: float, output: float) -> None:
    """Steps between looks, at most so many steps for so many prompts: published launches have 10-30, 20-60, 4-15."""
    free = Terms(latency=1e-12)  # so that only steps are waited for
    facts = {"output": output, "alone": free, "together": free}
    step, engine = 1e-3, msgspec.structs.replace(ENGINE, step=1e3, sequence=0.0, first=1.0)
    plain, late = (served(replace(load(), decode=free, **facts, **more), GENERATION, engine, COMMON)[1]
                   for more in ({}, {"looks": looks, "holds": holds, "fills": fills}))
    expected = held(looks, holds, fills, 8 / output) - 0.5 * (looks > 1)  # half a step is waited for in any case
    assert (late - plain) / step == pytest.approx(expected, rel=0.12)


def test_prompts_that_were_held_share_a_pass() -> None:
    """With eight requests and answers of 100 tokens 0.08 come in a step, so 20 steps bring 1.6 more prompts."""
    plain, late = (served(load(looks=looks), GENERATION, ENGINE, COMMON)[1] for looks in (1, 21))
    prompt = pass_seconds(load().alone, GENERATION, ENGINE, COMMON, prefill=True, narrow=0.0)
    step = served(load(output=1e9), GENERATION, ENGINE, COMMON)[0]
    assert late - plain == pytest.approx(10 * step + 1.6 * prompt, rel=0.01)


def test_what_lets_requests_in_slowly_leaves_fewer_to_be_decoded() -> None:
    many = {"requests": 512, "held": 512, "batch": 512, "output": 1000}
    slow = msgspec.structs.replace(ENGINE, stream=1000.0)  # a thousand tokens a second
    tpot, ttft = served(load(**many), GENERATION, slow, COMMON)
    fast, soon = served(load(**many), GENERATION, msgspec.structs.replace(ENGINE, stream=1e-3), COMMON)
    assert tpot < fast and ttft > 10 * soon
    assert 512 * 1000 / (ttft + 1000 * tpot) == pytest.approx(1000, rel=0.2)


def test_workers_that_only_prefill_let_in_what_they_can_do() -> None:
    many = {"requests": 512, "held": 512, "batch": 512, "output": 1000, "apart": 1}
    prompt = pass_seconds(load().alone, GENERATION, ENGINE, COMMON, prefill=True, narrow=0.0)
    slow = msgspec.structs.replace(COMMON, apart_capacity=0.01, apart_room=1.0)  # of 1 / prompt a second
    tpot, ttft = served(load(**many), GENERATION, msgspec.structs.replace(ENGINE, apart_prefill=1.0), slow)
    assert 512 / (ttft + 1000 * tpot) == pytest.approx(0.01 / prompt, rel=0.2)


def test_fewer_sequences_read_the_same_weights() -> None:
    whole = terms(sparse(), Layout(tp=4), target(4), STEP, COMMON)
    half = fewer(whole, 0.5)
    assert half.linear_bytes == whole.linear_bytes and half.operators == whole.operators
    assert half.cache_bytes == pytest.approx(whole.cache_bytes / 2) and half.rows == whole.rows / 2


def test_a_small_all_reduce_sends_all_to_all_ranks() -> None:
    """A ring sends 2 (n - 1) / n of the buffer and has a second round; all to all sends n - 1 of it in one."""
    def seconds(size: float, ranks: int, far: float = 0.0) -> float:
        ring = 2 * (ranks - 1) / ranks * size
        return float(summed(Sent(Seconds(0.0, 10 * ring, 0.0), 10, Calls(1.0, np.log2(ranks), far), "reduce")))

    assert seconds(1e-7, 8) == pytest.approx(10 * 7e-7) and seconds(1e-7, 2) == pytest.approx(10 * 1e-7)
    assert seconds(1.0, 8) == pytest.approx(10 * 1.75, rel=1e-4)
    assert seconds(1e-7, 8, far=1.0) == pytest.approx(10 * 1.75e-7)


def test_a_step_with_a_prompt_is_longer_by_a_part_of_what_any_prompt_takes() -> None:
    """One prompt in a pass takes 10 ms, eight take 17 ms: 9 ms and 1 ms for each."""
    def prompts(seconds: float) -> Terms:
        return Terms(latency=seconds / ENGINE.prefill_factor)

    slow, plain = (msgspec.structs.replace(ENGINE, mixed=mixed, stream=1e-3) for mixed in (0.5, 1e-9))
    one = replace(load(requests=8, held=8, output=100), alone=prompts(0.010), together=prompts(0.017), prompts=8.0)
    more = served(one, GENERATION, slow, COMMON)[0] - served(one, GENERATION, plain, COMMON)[0]
    assert more == pytest.approx(8 / 100 * 0.009 * 0.5)
    many = replace(one, output=4.0)  # two prompts come in each step
    more = served(many, GENERATION, slow, COMMON)[0] - served(many, GENERATION, plain, COMMON)[0]
    assert more == pytest.approx(0.009 * 0.5)


def test_guesses_that_are_right_half_of_the_time_yield_a_geometric_sum():
    assert accepted(0.0, 0.5) == 1.0
    assert accepted(3.0, 0.5) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
