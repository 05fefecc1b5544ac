"""Every definition's flops and bytes, against values worked out by hand."""

from math import inf

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.ops import OPERATORS, attention_axes, distinct_experts, latent_axes, linear_axes, visible_pairs
from dayzero.schema import Attention

# Head counts, widths and ranks of DeepSeek-V3's config.json and of Kimi K3's.
V3 = Attention(kind="latent", heads=128, kv_heads=1, head_dim=192, v_head_dim=128, kv_rank=512, rope_dim=64)
K3 = Attention(kind="latent", heads=96, kv_heads=1, head_dim=192, v_head_dim=128, kv_rank=512, rope_dim=64)
KDA = Attention(kind="linear", heads=96, kv_heads=96, head_dim=128, v_head_dim=128, conv_kernel=4)
LATENT, LINEAR, SOFTMAX = (OPERATORS.get(name) for name in ("latent_attention", "linear_attention", "attention"))


def test_every_definition_names_the_axes_of_its_tensors():
    for definition in OPERATORS:
        assert OPERATORS.get(definition.name) is definition
        for tensor in (*definition.inputs, *definition.outputs):
            assert {*tensor.axes, tensor.item} <= set(definition.axes), definition.name


def test_every_definition_can_be_evaluated_with_its_axes():
    for definition in OPERATORS:
        axes = dict.fromkeys(definition.axes, 4.0) | {"top_k": 2.0, "absorbed": 1.0, "table": 0.0}
        assert definition.flops(axes) >= 0
        assert definition.bytes(axes) > 0


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 60))
def test_visible_pairs_is_the_sum_over_the_new_tokens(tokens, context, window):
    assert visible_pairs(tokens, context, window) == sum(min(context + i, window) for i in range(1, tokens + 1))
    assert visible_pairs(tokens, context) == sum(context + i for i in range(1, tokens + 1))


def test_decode_of_grouped_attention():
    grouped = Attention(kind="full", heads=9, kv_heads=3, head_dim=64, v_head_dim=64)
    axes = attention_axes(grouped, sequences=2, tokens=1, context=99)
    assert SOFTMAX.flops(axes) == 2 * 2 * 9 * 128 * 100
    # query and output 2 * 9 * 64 values each; keys and values 2 * 100 * 3 * 64 values each; 2 bytes.
    assert SOFTMAX.bytes(axes) == 2 * (2 * 2 * 9 * 64 + 2 * 2 * 100 * 3 * 64)


def test_a_window_bounds_what_is_read():
    sliding = Attention(kind="sliding", heads=8, kv_heads=8, head_dim=64, v_head_dim=64, window=128)
    near, far = (attention_axes(sliding, 1, 1, context) for context in (1_000, 100_000))
    assert SOFTMAX.flops(near) == SOFTMAX.flops(far) == 2 * 8 * 128 * 128
    assert SOFTMAX.bytes(near) == SOFTMAX.bytes(far)


def test_latent_decode_of_deepseek_v3_is_absorbed():
    axes = latent_axes(V3, sequences=1, tokens=1, context=4095)
    assert LATENT.flops(axes) == 278_528 * 4096  # 2 * 128 * (576 + 512) for each of 4,096 tokens
    # 4,096 latents of 576, a query of 128 x 192 and an output of 128 x 128; 2 bytes.
    assert LATENT.bytes(axes) == 2 * (4096 * 576 + 128 * 192 + 128 * 128)


def test_latent_prefill_of_deepseek_v3_is_expanded():
    axes = latent_axes(V3, sequences=1, tokens=4096, context=0)
    assert LATENT.flops(axes) == 81_920 * (4096 * 4097 // 2)  # 2 * 128 * (192 + 128) for each causal pair


def test_expanded_decode_expands_the_whole_context_again():
    axes = latent_axes(V3, sequences=1, tokens=1, context=100, absorbed=False)
    assert LATENT.flops(axes) == 81_920 * 101 + 100 * 2 * 128 * 512 * (128 + 128)


def test_chosen_tokens_of_deepseek_v32():
    sparse = msgspec.structs.replace(V3, index_heads=64, index_head_dim=128, index_top_k=2048)
    decode = latent_axes(sparse, sequences=1, tokens=1, context=65535)
    assert LATENT.flops(decode) == 278_528 * 2048
    assert LATENT.bytes(decode) == 2 * (2048 * 576 + 128 * 192 + 128 * 128)
    prefill = latent_axes(sparse, sequences=1, tokens=4096, context=0)  # the first 2,048 queries see all before them
    assert LATENT.flops(prefill) == 278_528 * (2048 * 2049 // 2 + 2048 * 2048)
    assert LATENT.bytes(prefill) == LATENT.bytes(latent_axes(V3, sequences=1, tokens=4096, context=0))
    assert latent_axes(sparse, 1, 1024, 0) == {**latent_axes(V3, 1, 1024, 0), "window": 2048}
    assert latent_axes(sparse, 1, 1, 65535, absorbed=False) == latent_axes(V3, 1, 1, 65535, absorbed=False)


def test_chosen_tokens_of_many_contexts():
    sparse = msgspec.structs.replace(V3, index_top_k=2048)
    contexts = np.array([100.0, 1000.0, 3000.0, 100_000.0])
    for tokens in (1, 512):
        together = latent_axes(sparse, 2, tokens, contexts)
        for place, context in enumerate(contexts):
            alone = latent_axes(sparse, 2, tokens, float(context))
            assert LATENT.flops(together)[place] == LATENT.flops(alone)
            assert LATENT.bytes(together)[place] == LATENT.bytes(alone)


def test_latent_decode_of_kimi_k3():
    assert LATENT.flops(latent_axes(K3, 1, 1, 0)) == 2 * 96 * 1088


def test_linear_decode_of_kimi_k3_reads_and_writes_the_state():
    axes = linear_axes(KDA, sequences=1, tokens=1)
    assert LINEAR.flops(axes) == 7 * 96 * 128 * 128
    assert LINEAR.bytes(axes) == 2 * 6_291_456 + 2 * 4 * 96 * 128


def test_linear_prefill_passes_the_state_once_a_chunk():
    axes = linear_axes(KDA, sequences=1, tokens=4096)
    assert LINEAR.bytes(axes) == 2 * 64 * 6_291_456 + 4096 * 2 * 4 * 96 * 128
    # In chunks of 64: 6 * 128 * 128 for the state and 64 * (6 + 4) * 128 inside the chunk, for each token and head.
    assert LINEAR.flops(axes) == 4096 * 96 * (98_304 + 81_920)


def test_distinct_experts_by_hand():
    assert distinct_experts(896, 16, 1) == pytest.approx(16)
    assert distinct_experts(4, 2, 2) == pytest.approx(3)  # each expert is missed with probability 1/4
    assert distinct_experts(8, 8, 1) == 8


@given(st.integers(1, 512), st.data())
def test_distinct_experts_rise_to_all(experts, data):
    top_k = data.draw(st.integers(1, experts))
    counts = [distinct_experts(experts, top_k, tokens) for tokens in (1, 2, 8, 64, 10**6)]
    assert counts == sorted(counts)
    assert counts[0] == pytest.approx(top_k)
    assert counts[-1] == pytest.approx(experts)


def test_experts_read_the_weights_of_those_visited():
    axes = {"tokens": 1, "experts": 896, "top_k": 16, "matrices": 3, "hidden": 3584, "width": 3072, "item": 2,
            "weight_item": 0.53125}  # fmt: skip
    definition = OPERATORS.get("experts")
    assert definition.flops(axes) == 2 * 16 * 3 * 3584 * 3072
    assert definition.bytes(axes) == pytest.approx(16 * 3 * 3584 * 3072 * 0.53125 + 16 * 2 * 3584 * 2)


def test_linear_router_norm_elementwise_and_embedding_by_hand():
    axes = {"tokens": 3, "inner": 5, "outer": 7, "groups": 1, "hidden": 5, "experts": 7, "item": 2, "weight_item": 2,
            "score_item": 4, "elements": 11, "operands": 2, "operations": 1}  # fmt: skip
    by_name = {d.name: (d.flops(axes), d.bytes(axes)) for d in OPERATORS if set(d.axes) <= set(axes)}
    assert by_name["linear"] == (210, 2 * (15 + 35 + 21))
    assert by_name["router"] == (210, 2 * (15 + 35) + 4 * 21)
    assert by_name["norm"] == (60, 2 * (15 + 5 + 15))
    assert by_name["elementwise"] == (11, 2 * (22 + 11))
    assert by_name["embedding"] == (0, 2 * (15 + 15))


def test_no_window_is_an_infinite_one():
    attention = Attention(kind="full", heads=1, kv_heads=1, head_dim=1, v_head_dim=1)
    assert attention_axes(attention, 1, 1, 5)["window"] == inf


def test_groups_of_a_linear_have_their_own_weights():
    axes = {"tokens": 3, "groups": 2, "inner": 5, "outer": 7, "item": 2, "weight_item": 1}
    definition = OPERATORS.get("linear")
    assert definition.flops(axes) == 2 * 3 * 2 * 5 * 7
    assert definition.bytes(axes) == 2 * 3 * 2 * 5 + 2 * 5 * 7 + 2 * 3 * 2 * 7


def test_rotary_by_hand():
    axes = {"tokens": 3, "heads": 5, "turned": 8, "table": 0, "item": 2}
    definition = OPERATORS.get("rotary")
    assert definition.flops(axes) == 3 * 3 * 5 * 8  # two products and a sum for each of 120 values
    assert definition.bytes(axes) == 2 * (120 + 24 + 120)
    assert definition.flops(axes | {"table": 1}) == 3 * 3 * 4  # angle, cosine and sine for each of 3 x 4
    assert definition.bytes(axes | {"table": 1}) == 2 * 24


def test_convolution_of_kimi_k3_by_hand():
    axes = {"sequences": 1, "tokens": 4096, "channels": 12288, "inner": 1, "kernel": 4, "item": 2, "weight_item": 2}
    definition = OPERATORS.get("convolution")
    assert definition.flops(axes) == 2 * 4096 * 12288 * 4
    assert definition.bytes(axes) == 2 * (2 * 4096 * 12288 + 4 * 12288)


def test_indexer_of_deepseek_v32_by_hand():
    # Its config: 64 heads of 128, the largest 2,048 of all tokens.
    axes = {"sequences": 1, "tokens": 1, "context": 4095, "keys": 4096, "merged": 1, "heads": 64, "head_dim": 128,
            "top_k": 2048, "item": 1, "index_item": 4}  # fmt: skip
    definition = OPERATORS.get("indexer")
    assert definition.flops(axes) == 64 * (2 * 128 + 3) * 4096
    assert definition.bytes(axes) == 64 * 128 + 4096 * 128 + 64 + 4 * 2048
    assert definition.flops(axes | {"merged": 4}) == 64 * (2 * 128 + 3) * 1024


def test_merged_attention_sees_a_window_and_entries():
    axes = {"sequences": 2, "tokens": 1, "context": 1023, "window": 128, "merged": 4, "top_k": 512, "keys": 384,
            "heads": 8, "kv_heads": 1, "head_dim": 64, "v_head_dim": 64, "item": 2}  # fmt: skip
    definition = OPERATORS.get("merged_attention")
    assert definition.flops(axes) == 2 * 2 * 8 * 128 * (128 + 256)  # 128 tokens and 1024 / 4 entries
    assert definition.flops(axes | {"top_k": 100}) == 2 * 2 * 8 * 128 * (128 + 100)
    assert definition.bytes(axes) == 2 * 2 * (8 * 64 + 384 * 64 + 8 * 64)


def test_copy_mask_matmul_and_sampling_by_hand():
    axes = {"elements": 11, "sequences": 2, "tokens": 3, "keys": 5, "products": 2, "inner": 5, "outer": 7, "vocab": 9,
            "item": 2}  # fmt: skip
    by_name = {d.name: (d.flops(axes), d.bytes(axes)) for d in OPERATORS if set(d.axes) <= set(axes)}
    assert by_name["copy"] == (0, 2 * 22)
    assert by_name["mask"] == (30, 2 * 30)
    assert by_name["matmul"] == (2 * 2 * 3 * 5 * 7, 2 * 2 * (15 + 35 + 21))
    assert by_name["sampling"] == (0, 2 * 27)
