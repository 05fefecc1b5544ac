"""Memory of one device: never negative, right by hand, and divided only as far as things can be."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import dense, device, sparse, target

from dayzero.data import engine
from dayzero.data.allocation import allocation
from dayzero.data.engines import resolve_engine
from dayzero.placement import (
    CAUSES,
    device_bytes,
    fullest_device,
    sequence_bytes,
    sequences_per_replica,
    split_layers,
)
from dayzero.placement.held import held_bytes, rounding_bytes, weight_bytes
from dayzero.placement.memory import attention_values, feed_forward_values, layer_cache_bytes, layer_state_bytes
from dayzero.schema import Attention, FeedForward, Layout
from dayzero.schema.target import EngineRequest

LATENT = Attention(kind="latent", heads=128, kv_heads=1, head_dim=192, v_head_dim=128, q_rank=1536, kv_rank=512,
                   rope_dim=64)
FULL = Attention(kind="full", heads=32, kv_heads=4, head_dim=128, v_head_dim=128)


@given(tp=st.sampled_from([1, 2, 4, 8, 16]), pp=st.integers(1, 8), dp=st.integers(1, 4),
       concurrency=st.integers(1, 300), tokens=st.integers(1, 200_000))
def test_all_causes_are_there_and_none_is_negative(tp: int, pp: int, dp: int, concurrency: int, tokens: int) -> None:
    layout = Layout(tp=tp, pp=pp, dp=dp)
    wanted = target(16, concurrency=concurrency, input_tokens=tokens, on=device(process_bytes=7))
    for stage in range(pp):
        causes = device_bytes(sparse(), layout, range(*split_layers(sparse(), pp)[stage]), wanted)
        assert tuple(causes) == CAUSES
        assert all(size >= 0 for size in causes.values())
        assert causes["process"] == 7
        assert (causes["logits"] > 0) == (stage == pp - 1)
    assert fullest_device(sparse(), layout, wanted) in [
        device_bytes(sparse(), layout, range(*stage), wanted) for stage in split_layers(sparse(), pp)]


@given(more=st.integers(1, 100_000), concurrency=st.integers(1, 64))
def test_more_work_never_needs_less(more: int, concurrency: int) -> None:
    small = target(8, input_tokens=1024, concurrency=concurrency)
    large = target(8, input_tokens=1024 + more, concurrency=concurrency + 1)
    few, many = (device_bytes(sparse(), Layout(tp=4), range(8), wanted) for wanted in (small, large))
    assert all(many[cause] >= few[cause] for cause in CAUSES)


def test_cache_of_a_small_dense_model_by_hand() -> None:
    # 30 layers * (key + value) * 3 heads * 64 * 2 bytes
    assert sequence_bytes(dense(), Layout(), range(30), 1) == (30 * 2 * 3 * 64 * 2, 0)
    assert sequence_bytes(dense(), Layout(tp=3), range(30), 100)[0] == 30 * 2 * 64 * 2 * 100
    assert sequence_bytes(dense(), Layout(tp=9), range(30), 100)[0] == 30 * 2 * 64 * 2 * 100


def test_weights_of_one_device_are_the_checkpoint() -> None:
    causes = device_bytes(dense(), Layout(), range(30), target(1))
    assert causes["weights"] == dense().checkpoint_bytes
    assert causes["workspace"] == 0


def test_a_latent_cache_is_not_divided_by_tp_but_by_cp() -> None:
    # (512 + 64) * 2 bytes for each token and layer; 46.80 GiB / 715,072 tokens = 70,274 in an engine's log of Kimi-K2
    assert 61 * layer_cache_bytes(LATENT, Layout(), 1, 2) == 70_272
    assert layer_cache_bytes(LATENT, Layout(tp=16), 1000, 2) == 1000 * 576 * 2
    assert layer_cache_bytes(LATENT, Layout(tp=16, cp=8), 1000, 2) == 125 * 576 * 2
    stated = msgspec.structs.replace(LATENT, kv_heads=128)  # what configs state beside a latent cache changes nothing
    assert layer_cache_bytes(stated, Layout(tp=16), 1000, 2) == 1000 * 576 * 2


def test_context_parallelism_replaces_replication_of_heads() -> None:
    assert layer_cache_bytes(FULL, Layout(tp=16), 1000, 2) == 1000 * 256 * 2
    assert layer_cache_bytes(FULL, Layout(tp=16, cp=4), 1000, 2) == 250 * 256 * 2
    assert layer_cache_bytes(FULL, Layout(tp=8, cp=4), 1000, 2) == 250 * 2 * 256 * 2  # two ranks share the four heads


def test_a_window_limits_the_cache() -> None:
    sliding = msgspec.structs.replace(FULL, kind="sliding", window=128)
    assert layer_cache_bytes(sliding, Layout(), 100_000, 2) == 128 * 4 * 256 * 2
    assert layer_cache_bytes(sliding, Layout(), 100, 2) == 100 * 4 * 256 * 2


def test_the_state_of_linear_attention_is_divided_by_heads() -> None:
    linear = Attention(kind="linear", heads=32, kv_heads=32, head_dim=128, v_head_dim=128)
    assert layer_cache_bytes(linear, Layout(), 1000, 2) == 0
    assert layer_state_bytes(linear, Layout()) == 32 * 128 * 128 * 4
    assert layer_state_bytes(linear, Layout(tp=8)) * 8 == layer_state_bytes(linear, Layout())


def test_a_layer_without_attention_keeps_nothing() -> None:
    none = Attention(kind="none", heads=0, kv_heads=0, head_dim=0, v_head_dim=0)
    assert (layer_cache_bytes(none, Layout(tp=2), 1000, 2), layer_state_bytes(none, Layout(tp=2))) == (0, 0)
    assert attention_values(none, Layout(tp=2)) == 0
    model = msgspec.structs.replace(sparse(), attentions={"a": none})
    causes = device_bytes(model, Layout(tp=2), range(8), target(2))
    assert causes["weights"] > 0 and causes["kv_cache"] == causes["state"] == 0


def test_groups_that_share_attention_hold_their_own_sequences() -> None:
    latent = msgspec.structs.replace(sparse(), attentions={"a": LATENT})
    one = 8 * 576 * 2 * 1280  # layers * (rank + rope) * bytes * tokens
    for concurrency, held in ((8, 1), (16, 2), (17, 3), (1, 1)):
        wanted = target(8, concurrency=concurrency)
        assert device_bytes(latent, Layout(tp=8, attention_tp=1), range(8), wanted)["kv_cache"] == held * one
        assert device_bytes(latent, Layout(tp=8), range(8), wanted)["kv_cache"] == concurrency * one
    linear = msgspec.structs.replace(FULL, kind="linear")
    model, layout = msgspec.structs.replace(sparse(), attentions={"a": linear}), Layout(tp=8, attention_tp=2)
    causes = device_bytes(model, layout, range(8), target(8, concurrency=8))
    assert causes["state"] == 2 * 8 * layer_state_bytes(linear, layout)


def test_values_of_a_feed_forward_block_by_hand() -> None:
    experts = FeedForward(kind="experts", width=512, input_width=1024, experts=64, top_k=6, shared_width=600)
    assert feed_forward_values(experts, Layout()) == 6 * (2 * 1024 + 3 * 512) + 3 * 600
    assert feed_forward_values(experts, Layout(tp=4)) == 6 * (2 * 1024 + 3 * 128) + 3 * 150
    assert feed_forward_values(experts, Layout(tp=4, ep=4)) == 2 * (2 * 1024 + 3 * 512) + 3 * 150  # 6 / 4, rounded up
    assert feed_forward_values(experts, Layout(tp=2, dp=4, ep=8)) == 3 * (2 * 1024 + 3 * 512) + 3 * 300  # 6 * 4 / 8
    assert feed_forward_values(FeedForward(kind="dense", width=600, input_width=64), Layout(tp=4)) == 3 * 150
    every = feed_forward_values(experts, Layout(tp=4, ep=4), every_row=True)
    assert every == 6 * (2 * 1024 + 3 * 512) + 3 * 150  # rows of experts elsewhere are there, and stay empty
    assert feed_forward_values(experts, Layout(tp=2, dp=4, ep=8), True) == 3 * (2 * 1024 + 3 * 512) + 3 * 300


def test_an_engine_that_holds_every_row_needs_more_with_experts_dealt_out() -> None:
    layout = Layout(tp=8, ep=8)
    wanted = target(8, concurrency=8)
    plain, vllm = (device_bytes(sparse(), layout, range(8), msgspec.structs.replace(wanted, engine=engine))
                   for engine in (wanted.engine, msgspec.structs.replace(wanted.engine, name="vllm")))
    assert vllm["activations"] > plain["activations"]


def test_sequences_are_dealt_out_to_replicas() -> None:
    workload = target(8, concurrency=9).workload
    assert sequences_per_replica(workload, Layout(dp=4)) == 3
    assert sequences_per_replica(workload, Layout(tp=8)) == 9


def test_causes_of_an_engine_whose_rules_are_known() -> None:
    # vllm/config/vllm.py of 0.27.1: 51 sizes up to 512, twice with 1,024 sequences; 0 to 0.6 MiB a graph and layer
    wanted = msgspec.structs.replace(target(8, concurrency=8), engine=resolve_engine(EngineRequest(name="vllm")))
    assert wanted.cluster.device.memory_bytes > 75e9
    layers = range(len(sparse().layers))
    plain = device_bytes(sparse(), Layout(tp=8), layers, target(8, concurrency=8))
    known = device_bytes(sparse(), Layout(tp=8), layers, wanted)
    assert known["graphs"] == 629_145 * 102 * len(layers) // 2
    assert (plain["graphs"], plain["workspace"], plain["fragmentation"]) == (0, 0, 0)
    assert known["communication"] - plain["communication"] == 1_374_389_534
    assert device_bytes(sparse(), Layout(), layers, wanted)["communication"] == 0  # one device talks to none


def test_large_tensors_are_rounded_up_to_what_the_allocator_asks_for() -> None:
    # pytorch, c10/cuda/CUDACachingAllocator.cpp: tensors from 10 MiB on get a multiple of 2 MiB; of embedding and head,
    # 65,536,000 bytes each, 31.25 of them are 32; a layer's experts, 67,108,864 bytes, are 32; others are below 10 MiB
    model, rules = sparse(), allocation("vllm")
    assert rules
    assert rounding_bytes(model, Layout(), engine("any"), rules, range(len(model.layers))) == 2 * 1_572_864


def test_weights_by_part_are_all_weights() -> None:
    model, rules = sparse(), allocation("vllm")
    layers = range(len(model.layers))
    parts = weight_bytes(model, Layout(tp=4), engine("any"), rules, layers, "sm_90")
    assert sum(parts.values()) == held_bytes(model, Layout(tp=4), engine("any"), rules, layers, "sm_90")
    assert {"attention", "experts", "router", "embedding"} <= parts.keys()
    assert max(parts, key=lambda part: parts[part]) == "experts"
