"""Figures of many layouts at once are those that each layout has alone, by the functions that take one layout."""

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.plan_models import device, target

from dayzero.data.efficiency import efficiency
from dayzero.placement import blockers, device_bytes, split_layers
from dayzero.placement.cache import allocated_sequence, allocation_of
from dayzero.placement.many import Layouts
from dayzero.placement.memory import sequences_per_replica, value_bytes
from dayzero.placement.precision import schemes
from dayzero.resolve import resolve_target
from dayzero.schema import Layout
from dayzero.stages.plan.evaluate import evaluate
from dayzero.stages.plan.times.serving import Load, served
from dayzero.stages.plan.times.terms import terms
from dayzero.stages.plan.times.timing import pass_seconds
from dayzero.stages.plan.times.work import decode_step, prefill_step
from dayzero.stages.read import read

CARDS = ("kimi-k3", "deepseek-v3", "gpt-oss-20b", "qwen3-next-80b-a3b", "gemma-3-1b", "llama-3.1-8b")


@pytest.fixture(scope="module")
def models(root):
    return {name: read(root / "examples" / "cards" / f"{name}.toml").model for name in CARDS}


@pytest.fixture(scope="module")
def cluster(root):
    """Two nodes of eight, and an engine whose memory is known."""
    return resolve_target(root / "examples" / "targets" / "h200-2x8.toml")


@st.composite
def some_layouts(draw):
    """A dozen of up to 64 devices, of all degrees."""
    power = st.integers(0, 3).map(lambda exponent: 2**exponent)
    made = []
    for _ in range(12):
        tp, pp, dp, third = draw(power), draw(power | st.just(3)), draw(power), draw(st.sampled_from([1, 1, 3]))
        tp *= third
        ep = draw(st.sampled_from([one for one in range(1, tp * dp + 1)
                                   if tp * dp % one == 0 and (tp % one == 0 or one % tp == 0)]))
        attention = draw(st.sampled_from([one for one in range(1, tp + 1) if tp % one == 0]))
        cp = draw(st.sampled_from([one for one in range(1, attention + 1) if attention % one == 0]))
        made.append(Layout(tp=tp, pp=pp, ep=ep, dp=dp, cp=cp, attention_tp=attention))
    return made


def legal(model, found, engine):
    return [one for one in found if not blockers(model, one, engine) and (one.ep == 1 or model.mixes_experts)]


def on(cluster, layouts, concurrency, tokens):
    """A target as large as the largest layout."""
    nodes = -(-max(one.world_size for one in layouts) // 8)
    workload = msgspec.structs.replace(cluster.workload, concurrency=concurrency, input_tokens=tokens,
                                       output_tokens=max(1, tokens // 4))
    return msgspec.structs.replace(cluster, workload=workload,
                                   cluster=msgspec.structs.replace(cluster.cluster, nodes=max(2, nodes)))


WORKLOADS = {"concurrency": st.sampled_from([1, 7, 64, 1000]), "tokens": st.sampled_from([1, 500, 8192, 100_000])}


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(CARDS), found=some_layouts(), **WORKLOADS)
def test_memory_is_that_of_each_layout_alone(models, cluster, name, found, concurrency, tokens):
    model = models[name]
    found = legal(model, found, cluster.engine) or [Layout()]
    there = on(cluster, found, concurrency, tokens)
    columns = evaluate(model, there, Layouts.of(found))
    assert list(columns.layouts) == found
    for row, layout in enumerate(found):
        each = [device_bytes(model, layout, range(*part), there) for part in split_layers(model, layout.pp)]
        whole = max(sum(causes.values()) for causes in each)
        rounding = 1e-12 * whole + len(model.families)  # a byte for each family
        assert columns.need_bytes[row] == pytest.approx(whole, abs=rounding)
        assert sum(column[row] for column in columns.causes.values()) == pytest.approx(whole, abs=rounding)
        assert columns.max_sequences[row] in {rooms(model, there, layout, each, slack) for slack in (-100, 0, 100)}
        if abs(whole - there.cluster.usable_bytes) > rounding:
            assert columns.fits[row] == (whole <= there.cluster.usable_bytes)


def rooms(model, there, layout, each, slack):
    """Sequences that fit, with whole numbers, in `slack` bytes more."""
    groups, rules, least = layout.tp // layout.attention_degree, allocation_of(there.engine), []
    for (start, stop), causes in zip(split_layers(model, layout.pp), each, strict=True):
        one = sum(allocated_sequence(model, layout, range(start, stop), there.workload, rules))
        if stop == len(model.layers):
            one += groups * model.vocab_size * (value_bytes(model) + 4)
        fixed = sum(size for cause, size in causes.items() if cause not in ("kv_cache", "state", "logits"))
        least.append(max(0, there.cluster.usable_bytes - fixed + slack) // one)
    return min(least) * groups * layout.dp


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(CARDS), found=some_layouts(), **WORKLOADS)
def test_times_are_those_of_each_layout_alone(models, cluster, name, found, concurrency, tokens):
    """Where there is one stage: the serving model with the terms of one layout, as `score` puts it together."""
    model = models[name]
    found = [msgspec.structs.replace(one, pp=1) for one in found]
    found = legal(model, found, cluster.engine) or [Layout()]
    there = on(cluster, found, concurrency, tokens)
    columns = evaluate(model, there, Layouts.of(found))
    for row, layout in enumerate(found):
        tpot, ttft = alone(model, there, layout, int(columns.max_sequences[row]))
        assert columns.tpot_s[row] == pytest.approx(tpot, rel=1e-9)
        assert columns.ttft_s[row] == pytest.approx(ttft, rel=1e-9)


def alone(model, there, layout, room):
    known, workload = efficiency(), there.workload
    sequences = min(sequences_per_replica(workload, layout), max(1, room // layout.dp))
    prompts = min(max(1, workload.max_batched_tokens // workload.input_tokens),
                  sequences_per_replica(workload, layout))
    inner = layout.tp // layout.attention_degree  # groups that prefill side by side, each its own prompts
    steps = decode_step(there, sequences), prefill_step(there), prefill_step(there, prompts * inner, filled=True)
    passes = [terms(model, layout, there, step, known.common) for step in steps]
    held, spread = min(max(1, room), workload.concurrency), max(1, layout.ep // layout.tp)
    narrow = 8 * sum(one.stored_bytes for one in model.families) < 12 * sum(one.parameters for one in model.families)
    load = Load(decode=passes[0], alone=passes[1], together=passes[2], prompts=prompts, requests=workload.concurrency,
                held=held, groups=layout.dp * layout.tp // layout.attention_degree, output=workload.output_tokens,
                narrow=float(narrow), wide=float(spread > 8), apart=0.0, unstated=0.0,
                batch=held / (layout.dp * inner), schedulers=layout.dp * inner)
    generation, engine, _ = known.figures(there.cluster.device.arch, there.engine.name, *schemes(model))
    tpot, ttft = served(load, generation, engine, known.common)
    each = pass_seconds(load.together, generation, engine, known.common, prefill=True, narrow=load.narrow) / prompts
    return tpot, max(ttft, load.requests * each / load.groups - (load.output - 1) * tpot)


@pytest.mark.parametrize("kind", [{}, {"efficiency": 0.7}, {"efficiency": 1.0, "measured": True}])
@pytest.mark.parametrize("name", CARDS)
def test_a_layout_has_the_same_figures_in_any_company(models, kind, name):
    model = models[name]
    wide = [Layout(tp=tp, pp=pp, dp=16 // tp // pp) for tp in (1, 2, 4, 8, 16) for pp in (1, 2, 4, 8)
            if tp * pp <= 16]
    found = legal(model, wide, target().engine)
    there = target(8, 2, on=device(**kind), concurrency=40)
    together = evaluate(model, there, Layouts.of(found))
    assert len(together) == len(found) > 3
    for row in range(0, len(found), 3):
        one = evaluate(model, there, Layouts.of([found[row]]))
        for figure in ("need_bytes", "max_sequences", "ttft_s", "tpot_s", "tokens_per_s", "ttft_between",
                       "tpot_between", "tokens_between"):
            assert getattr(together, figure)[..., row] == pytest.approx(getattr(one, figure)[..., 0], rel=1e-12)


def test_stages_work_at_the_same_time_where_there_are_enough_sequences(models):
    """Sixteen stages of a prompt of many chunks take little more than its chunks at the pace of one stage, and the
    next prompt follows at that pace; a single sequence passes the stages one after another."""
    model = models["llama-3.1-8b"]
    few, many = (target(8, 2, concurrency=count, input_tokens=2**17, max_batched_tokens=2**11) for count in (1, 16))
    deep, flat = Layouts.of([Layout(pp=16)]), Layouts.of([Layout(tp=1)])
    one = evaluate(model, few, flat), evaluate(model, few, deep)
    assert one[1].ttft_s[0] < one[0].ttft_s[0] / 10
    short = target(8, 2, concurrency=1, input_tokens=16)
    assert evaluate(model, short, deep).tpot_s[0] == pytest.approx(evaluate(model, short, flat).tpot_s[0], rel=0.05)
    crowded = evaluate(model, many, flat), evaluate(model, many, deep)
    assert crowded[1].tokens_per_s[0] > 8 * crowded[0].tokens_per_s[0]


def test_a_shared_cache_is_read_faster_and_holds_more(models):
    """A latent cache, which tensor parallelism does not divide, of 100,000 tokens, at the stated rates."""
    large = device(memory_bytes=5 * 10**11, efficiency=1.0, flops={"bf16": 1e15})
    there = target(8, concurrency=32, input_tokens=100_000, output_tokens=4000, on=large)
    found = evaluate(models["deepseek-v3"], there, Layouts.of([Layout(tp=8), Layout(tp=8, cp=8)]))
    assert found.fits.all() and found.max_sequences[1] > 7 * found.max_sequences[0]
    # 32 sequences of 102,000 entries of 1,152 bytes in 61 layers, at 1 TB/s, of which seven of eight are not read; and
    # queries and results of eight times the heads, and their exchange over 100 GB/s
    saved = 7 / 8 * 32 * 102_000 * 1152 * 61 / 1e12
    assert 0.9 * saved < found.tpot_s[0] - found.tpot_s[1] < saved


def test_each_layout_may_have_a_concurrency_of_its_own(models, cluster):
    model = models["gemma-3-1b"]  # with windows, which keep some of a step's tokens
    some, counts = [Layout(dp=2), Layout(tp=2), Layout(dp=4), Layout(pp=2)], [1, 100, 16, 3]
    together = msgspec.structs.replace(cluster.workload, concurrency=np.array(counts))
    found = evaluate(model, msgspec.structs.replace(cluster, workload=together), Layouts.of(some))
    for row, (layout, count) in enumerate(zip(some, counts, strict=True)):
        alone = msgspec.structs.replace(cluster.workload, concurrency=count)
        one = evaluate(model, msgspec.structs.replace(cluster, workload=alone), Layouts.of([layout]))
        for figure in ("need_bytes", "max_sequences", "ttft_s", "tpot_s", "tokens_per_s"):
            assert getattr(found, figure)[row] == pytest.approx(getattr(one, figure)[0], rel=1e-12)


@pytest.mark.parametrize("layout", [Layout(tp=8), Layout(pp=8), Layout(dp=8), Layout(tp=8, attention_tp=2)])
def test_no_more_prompts_are_answered_than_there_is_time_for(models, layout):
    """Of ever more requests, prefill alone: twice as many take twice as long."""
    times = [evaluate(models["llama-3.1-8b"], target(8, concurrency=count, input_tokens=4096, output_tokens=1),
                      Layouts.of([layout])).ttft_s[0] for count in (1024, 2048)]
    assert times[1] == pytest.approx(2 * times[0], rel=0.01)


def test_nothing_gets_faster_with_more_to_do(models):
    """Prompts beyond one chunk, and sequences beyond the stages of a pipeline."""
    model, deep = models["llama-3.1-8b"], Layouts.of([Layout(pp=16), Layout(tp=2, pp=8), Layout(tp=16)])
    lengths = [evaluate(model, target(8, 2, concurrency=1, input_tokens=tokens), deep)
               for tokens in (8191, 8192, 8193, 9000, 12_000, 16_384, 16_385)]
    for before, after in pairwise(lengths):
        assert (after.ttft_s >= before.ttft_s * (1 - 1e-9)).all()
    for name in ("llama-3.1-8b", "gpt-oss-20b"):
        legal_ = Layouts.of(legal(models[name], deep, target().engine))
        counts = [evaluate(models[name], target(8, 2, concurrency=count), legal_) for count in range(1, 40)]
        for before, after in pairwise(counts):
            assert (after.tpot_s >= before.tpot_s * (1 - 1e-9)).all()


def test_no_interval_reaches_below_what_memory_can_do(models):
    """16 GB of weights over 8 devices at 1 TB/s."""
    found = evaluate(models["llama-3.1-8b"], target(8, concurrency=1), Layouts.of([Layout(pp=8), Layout(tp=8)]))
    assert found.tpot_between[0, 0] > 15e9 / 1e12 and found.tpot_between[0, 1] > 15e9 / 8e12
    assert (found.tpot_between[0] <= found.tpot_s).all() and (found.tpot_s <= found.tpot_between[1]).all()
