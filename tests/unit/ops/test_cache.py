"""Bytes of cache and state, against figures of published models."""

import pytest

from dayzero.errors import ReleaseError
from dayzero.ops import (
    cache_bytes_per_token,
    conv_history_bytes,
    recurrent_state_bytes,
    state_bytes_per_sequence,
)
from dayzero.schema import Attention

GROUPED = Attention(kind="full", heads=9, kv_heads=3, head_dim=64, v_head_dim=64)
LATENT = Attention(kind="latent", heads=96, kv_heads=1, head_dim=192, v_head_dim=128, kv_rank=512, rope_dim=64)
LINEAR = Attention(kind="linear", heads=96, kv_heads=96, head_dim=128, v_head_dim=128, conv_kernel=4)


def test_a_grouped_cache_holds_a_key_and_a_value_for_each_kv_head():
    # SmolLM2-135M's config: 3 KV heads of 64; 2 * 3 * 64 values of 2 bytes.
    assert cache_bytes_per_token(GROUPED) == 768
    assert cache_bytes_per_token(GROUPED, bytes_per_value=1) == 384


def test_a_latent_cache_holds_rank_and_positional_key():
    # 24 latent layers of Kimi K3: 27,648 bytes a token, as its report's ranks give.
    assert 24 * cache_bytes_per_token(LATENT) == 27_648


def test_the_recurrent_state_of_kimi_k3():
    # 69 linear layers, 96 heads of 128 x 128 in fp32: 434.1 MB for each sequence.
    assert 69 * recurrent_state_bytes(LINEAR) == 434_110_464


def test_the_state_of_a_state_space():
    # Nemotron-H-8B's config: 128 heads of 64 with states of 128, 8 groups, 4 taps over 8192 + 2 * 8 * 128 channels.
    space = Attention(kind="linear", heads=128, kv_heads=8, head_dim=128, v_head_dim=64, conv_kernel=4)
    assert recurrent_state_bytes(space) == 128 * 64 * 128 * 4
    assert conv_history_bytes(space) == 3 * 10_240 * 2


def test_convolutions_add_their_last_inputs():
    # 3 taps before the current one, 3 * 96 * 128 channels, 2 bytes.
    assert conv_history_bytes(LINEAR) == 3 * 36_864 * 2
    assert state_bytes_per_sequence(LINEAR) == recurrent_state_bytes(LINEAR) + 221_184


def test_a_linear_layer_caches_nothing_for_a_token_and_the_others_keep_no_state():
    assert cache_bytes_per_token(LINEAR) == 0
    assert state_bytes_per_sequence(GROUPED) == state_bytes_per_sequence(LATENT) == 0


def test_a_latent_cache_without_a_rank_is_an_error():
    with pytest.raises(ReleaseError, match="rank"):
        cache_bytes_per_token(Attention(kind="latent", heads=1, kv_heads=1, head_dim=8, v_head_dim=8))
