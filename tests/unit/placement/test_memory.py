"""Memory of one device: never negative, right by hand, and divided only as far as things can be."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import dense, device, sparse, target

from dayzero.placement import CAUSES, device_bytes, fullest_device, sequence_bytes, sequences_per_replica
from dayzero.placement.memory import layer_cache_bytes, layer_state_bytes
from dayzero.schema import Attention, Layout

LATENT = Attention(kind="latent", heads=128, kv_heads=1, head_dim=192, v_head_dim=128, q_rank=1536, kv_rank=512,
                   rope_dim=64)
FULL = Attention(kind="full", heads=32, kv_heads=4, head_dim=128, v_head_dim=128)


@given(tp=st.sampled_from([1, 2, 4, 8, 16]), pp=st.integers(1, 8), dp=st.integers(1, 4),
       concurrency=st.integers(1, 300), tokens=st.integers(1, 200_000))
def test_all_causes_are_there_and_none_is_negative(tp: int, pp: int, dp: int, concurrency: int, tokens: int) -> None:
    layout = Layout(tp=tp, pp=pp, dp=dp)
    wanted = target(16, concurrency=concurrency, input_tokens=tokens, on=device(process_bytes=7))
    for stage in range(pp):
        causes = device_bytes(sparse(), layout, stage, wanted)
        assert tuple(causes) == CAUSES
        assert all(size >= 0 for size in causes.values())
        assert causes["process"] == 7
        assert (causes["logits"] > 0) == (stage == pp - 1)
    assert fullest_device(sparse(), layout, wanted) in [device_bytes(sparse(), layout, s, wanted) for s in range(pp)]


@given(more=st.integers(1, 100_000), concurrency=st.integers(1, 64))
def test_more_work_never_needs_less(more: int, concurrency: int) -> None:
    small = target(8, input_tokens=1024, concurrency=concurrency)
    large = target(8, input_tokens=1024 + more, concurrency=concurrency + 1)
    few, many = (device_bytes(sparse(), Layout(tp=4), 0, wanted) for wanted in (small, large))
    assert all(many[cause] >= few[cause] for cause in CAUSES)


def test_cache_of_a_small_dense_model_by_hand() -> None:
    # 30 layers * (key + value) * 3 heads * 64 * 2 bytes
    assert sequence_bytes(dense(), Layout(), range(30), 1) == (30 * 2 * 3 * 64 * 2, 0)
    assert sequence_bytes(dense(), Layout(tp=3), range(30), 100)[0] == 30 * 2 * 64 * 2 * 100
    assert sequence_bytes(dense(), Layout(tp=9), range(30), 100)[0] == 30 * 2 * 64 * 2 * 100


def test_weights_of_one_device_are_the_checkpoint() -> None:
    causes = device_bytes(dense(), Layout(), 0, target(1))
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


def test_a_window_limits_the_cache() -> None:
    sliding = msgspec.structs.replace(FULL, kind="sliding", window=128)
    assert layer_cache_bytes(sliding, Layout(), 100_000, 2) == 128 * 4 * 256 * 2
    assert layer_cache_bytes(sliding, Layout(), 100, 2) == 100 * 4 * 256 * 2


def test_the_state_of_linear_attention_is_divided_by_heads() -> None:
    linear = Attention(kind="linear", heads=32, kv_heads=32, head_dim=128, v_head_dim=128)
    assert layer_cache_bytes(linear, Layout(), 1000, 2) == 0
    assert layer_state_bytes(linear, Layout()) == 32 * 128 * 128 * 4
    assert layer_state_bytes(linear, Layout(tp=8)) * 8 == layer_state_bytes(linear, Layout())


def test_sequences_are_dealt_out_to_replicas() -> None:
    workload = target(8, concurrency=9).workload
    assert sequences_per_replica(workload, Layout(dp=4)) == 3
    assert sequences_per_replica(workload, Layout(tp=8)) == 9
