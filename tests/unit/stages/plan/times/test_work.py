"""Flops and bytes of a step against values worked out by hand, and how they follow tokens, context and devices."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import dense, device, sparse, target

from dayzero.ops import distinct_experts
from dayzero.schema import Attention, Layout
from dayzero.stages.plan.times.stage import stage
from dayzero.stages.plan.times.work import (
    CACHE,
    cache_work,
    decode_step,
    pointwise_work,
    prefill_step,
    stage_work,
    weight_work,
)

DENSE, SPARSE = dense(), sparse()
ALL, SPARSE_ALL = stage(DENSE, range(30)), stage(SPARSE, range(8))
ONE = Layout()


def flops(work):
    return sum(item.flops for item in work)


def moved(work):
    return sum(item.bytes for item in work)


@pytest.mark.parametrize("sequences", [1, 7])
def test_a_dense_model_takes_two_operations_for_each_parameter_and_token(sequences):
    # 134,515,008 parameters, the tied embedding being the output head.
    work = weight_work(DENSE, ONE, target(), ALL, decode_step(target(), sequences))
    assert flops(work) == pytest.approx(2 * 134_515_008 * sequences, rel=0.01)
    assert moved(work) == 2 * 134_515_008


def test_prefill_needs_logits_of_the_last_token_only():
    work = weight_work(DENSE, ONE, target(), ALL, prefill_step(target()))
    head = 49152 * 576
    assert flops(work) == pytest.approx(2 * (1024 * (134_515_008 - head) + head), rel=1e-6)


def test_a_long_prompt_is_chunked_and_reads_the_weights_for_each_chunk():
    whole, chunked = (prefill_step(target(max_batched_tokens=most)) for most in (1024, 300))
    assert (chunked.passes, chunked.tokens) == (4, 256)
    once, four = (weight_work(DENSE, ONE, target(), ALL, step) for step in (whole, chunked))
    assert flops(four) == pytest.approx(flops(once))
    assert moved(four) > 3.5 * (moved(once) - 2 * 49152 * 576)
    # Every query still meets the same keys.
    assert flops(cache_work(DENSE, ONE, ALL, chunked)) == pytest.approx(flops(cache_work(DENSE, ONE, ALL, whole)))


def test_cache_of_a_decode_step():
    step = decode_step(target(input_tokens=1000, output_tokens=200), 4)
    (work,) = cache_work(DENSE, ONE, ALL, step)
    # 30 layers, 1,101 tokens, 3 heads of 64 for key and value, 2 bytes; query and output of 9 heads.
    assert work.bytes == 30 * 2 * 4 * (2 * 1101 * 192 + 2 * 576)
    assert work.flops == 30 * 2 * 4 * 9 * 128 * 1101


@given(st.integers(1, 64))
def test_experts_read_those_that_are_visited(sequences):
    work = weight_work(SPARSE, ONE, target(), SPARSE_ALL, decode_step(target(), sequences))
    gate = next(item for item in work if item.kind == "experts")
    one_matrix = 2 * 512 * 1024
    assert gate.bytes == pytest.approx(8 * one_matrix * distinct_experts(64, 4, sequences))
    assert gate.flops == pytest.approx(8 * one_matrix * 4 * sequences)


def test_experts_over_several_replicas_see_the_tokens_of_all_of_them():
    step = decode_step(target(), 4)
    layouts = Layout(dp=4), Layout(dp=4, ep=4)
    expert = [[item for item in weight_work(SPARSE, layout, target(), SPARSE_ALL, step) if item.kind == "experts"]
              for layout in layouts]
    assert flops(expert[1]) == pytest.approx(flops(expert[0]))  # 4 times the tokens on a quarter of the experts
    more_visited = distinct_experts(64, 4, 16) / distinct_experts(64, 4, 4)
    assert moved(expert[1]) == pytest.approx(moved(expert[0]) / 4 * more_visited)


def test_experts_without_layer_numbers_are_routed_by_the_block_that_has_as_many():
    def bare(**changes):
        families = tuple(msgspec.structs.replace(one, layers=(), **changes) if one.experts else one
                         for one in SPARSE.families)
        return msgspec.structs.replace(SPARSE, families=families)

    step = decode_step(target(), 4)
    numbered, without, unrouted = (weight_work(model, ONE, target(), SPARSE_ALL, step)
                                   for model in (SPARSE, bare(), bare(experts=63)))
    assert flops(without) == pytest.approx(flops(numbered)) and moved(without) == pytest.approx(moved(numbered))
    expert = next(item for item in unrouted if item.kind == "experts")
    assert expert.flops == 2 * 8 * 64 * 512 * 1024 * 4 and expert.bytes == 2 * 8 * 64 * 512 * 1024


def test_the_reference_runtime_expands_a_latent_cache_in_decode_and_engines_do_not():
    latent = Attention(kind="latent", heads=16, kv_heads=1, head_dim=192, v_head_dim=128, kv_rank=512, rope_dim=64)
    model = msgspec.structs.replace(SPARSE, attentions={"a": latent})
    step = decode_step(target(), 4)
    for measured, absorbed in ((True, False), (False, True)):
        on = target(on=device(efficiency=1.0, measured=measured))
        there = [work for work in stage_work(model, ONE, on, SPARSE_ALL, step) if work.kind == CACHE]
        assert there == cache_work(model, ONE, SPARSE_ALL, step, absorbed)
        assert there != cache_work(model, ONE, SPARSE_ALL, step, not absorbed)


@given(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]))
def test_more_devices_never_read_more_weights_each(tp, dp, ep):
    if (tp * dp) % ep or (tp % ep and ep % tp):
        return
    step = decode_step(target(), 10_000)  # visits every expert
    before = moved(weight_work(SPARSE, Layout(tp=tp, dp=dp, ep=ep), target(), SPARSE_ALL, step))
    for more in (Layout(tp=2 * tp, dp=dp, ep=ep), Layout(tp=tp, dp=2 * dp, ep=2 * ep)):
        if more.tp % more.ep and more.ep % more.tp:
            continue
        assert moved(weight_work(SPARSE, more, target(), SPARSE_ALL, step)) <= before


def test_pointwise_work_is_split_only_inside_the_block():
    step = decode_step(target(), 1)
    one, two = (pointwise_work(DENSE, layout, ALL, step).bytes for layout in (ONE, Layout(tp=2)))
    assert one - two == 30 * 3 * (1536 / 2) * 2
    assert one == 30 * 2 * (2 * 2 * 576 + 2 * 3 * 576 + 3 * 1536) + 2 * 2 * 576


def test_stages_together_do_all_the_work():
    step = decode_step(target(), 2)
    whole = stage_work(DENSE, ONE, target(), ALL, step)
    parts = [work for layers in (range(15), range(15, 30))
             for work in stage_work(DENSE, Layout(pp=2), target(), stage(DENSE, layers), step)]
    assert flops(parts) == pytest.approx(flops(whole))
    assert moved(parts) == pytest.approx(moved(whole))


def test_attention_that_fewer_ranks_share_deals_out_sequences():
    step = decode_step(target(), 8)
    together, apart = (cache_work(SPARSE, layout, SPARSE_ALL, step)[0]
                       for layout in (Layout(tp=4), Layout(tp=4, attention_tp=1)))
    # A quarter of the heads for 8 sequences, or all heads for 2: the same work, on 4 KV heads.
    assert apart.flops == pytest.approx(together.flops)
    assert apart.bytes == pytest.approx(together.bytes)


def test_ranks_that_share_the_tokens_of_a_sequence_read_their_part_of_its_cache():
    """All heads of the group on a part of the tokens: as many operations, and a latent cache is read once by all."""
    latent = Attention(kind="latent", heads=16, kv_heads=1, head_dim=192, v_head_dim=128, kv_rank=512, rope_dim=64)
    model = msgspec.structs.replace(SPARSE, attentions={"a": latent})
    step = decode_step(target(input_tokens=100_000, output_tokens=2), 4)
    plain, shared = (cache_work(model, layout, SPARSE_ALL, step)[0] for layout in (Layout(tp=8), Layout(tp=8, cp=4)))
    assert shared.flops == pytest.approx(plain.flops, rel=1e-4)
    query = 4 * 8 * 2 * 2 * (192 + 128)  # bytes of queries and results of two heads: here four times as many
    assert shared.bytes - 4 * query == pytest.approx((plain.bytes - query) / 4, rel=1e-4)
    linear = msgspec.structs.replace(latent, kind="linear")
    states = msgspec.structs.replace(SPARSE, attentions={"a": linear})
    assert (cache_work(states, Layout(tp=8), SPARSE_ALL, step)
            == cache_work(states, Layout(tp=8, cp=4), SPARSE_ALL, step))
    prompt = prefill_step(target())
    assert cache_work(model, Layout(tp=8), SPARSE_ALL, prompt) == cache_work(
        model, Layout(tp=8, cp=4), SPARSE_ALL, prompt)
