"""What mixes tokens, against what the models' own code computes (`trace`) and against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.config_release import GLM, LLAMA

from dayzero.ops import OPERATORS
from dayzero.placement.operators import Operator, choosing, mixing
from dayzero.schema import Attention, ModelSpec, TensorTable
from dayzero.stages.read.spec import model_spec

ENTRIES = Attention(kind="latent", heads=64, kv_heads=1, head_dim=512, v_head_dim=512, kv_rank=448, rope_dim=64,
                    merged=4, near=128, index_heads=64, index_head_dim=128, index_top_k=512)
"""DeepSeek-V4-Flash config.json: layers with a ratio of 4."""


def flops(operator: Operator) -> float:
    return float(OPERATORS.get(operator.op).flops(operator.axes))


def moved(operator: Operator) -> float:
    return float(OPERATORS.get(operator.op).bytes(operator.axes))


def test_decode_reads_the_chosen_entries_and_the_near_tokens() -> None:
    # 512 entries and 128 tokens; a pair costs 2 * 64 * (512 + 512)
    made = mixing(ENTRIES, 1, 1, 16383, 2)
    assert made.op == "merged_attention"
    assert flops(made) == 2 * 64 * 1024 * (512 + 128)
    assert moved(made) == 2 * (512 * (512 + 128 + 1) + 2 * 64 * 512)


def test_without_a_choice_every_entry_is_read() -> None:
    # transformers, models/deepseek_v4: in decode a layer with a ratio of 128 multiplies 64 queries with 128 entries and
    # 128 tokens (trace of the config at 16,383 cached tokens: 6.711e8 for 20 layers)
    every = Attention(kind="latent", heads=64, kv_heads=1, head_dim=512, v_head_dim=512, kv_rank=448, rope_dim=64,
                      merged=128, near=128)
    assert 20 * flops(mixing(every, 1, 1, 16383, 2)) == pytest.approx(6.711e8, rel=1e-3)


def test_a_window_alone_bounds_what_a_shared_head_reads() -> None:
    alone = Attention(kind="latent", heads=64, kv_heads=1, head_dim=512, v_head_dim=512, kv_rank=448, rope_dim=64,
                      window=128)
    assert flops(mixing(alone, 1, 1, 16383, 2)) == 2 * 64 * 1024 * 128


def test_numbers_and_arrays_agree() -> None:
    context = np.array([0, 100, 16383])
    many = mixing(ENTRIES, 2, 1, context, 2)
    together = OPERATORS.get(many.op)
    for place, one in enumerate(context.tolist()):
        single = mixing(ENTRIES, 2, 1, one, 2)
        assert together.flops(many.axes)[place] == pytest.approx(flops(single))
        assert together.bytes(many.axes)[place] == pytest.approx(moved(single))


@pytest.fixture(scope="module")
def glm() -> ModelSpec:
    shared = ["full" if layer % 2 == 0 else "shared" for layer in range(78)]
    return model_spec("glm", {**GLM, "indexer_types": shared}, TensorTable(files=(), groups=()))


def test_layers_that_share_a_choice_do_not_make_it_again(glm: ModelSpec) -> None:
    operator, share = choosing(glm, "latent", 1, 1, 65535)
    assert share == 0.5
    assert flops(operator) == 32 * (2 * 128 + 3) * 65536
    # keys of 128 values of 8 bits for every token, queries and weights of 32 heads, positions of 2,048 tokens
    assert moved(operator) == 65536 * 128 + 32 * 128 + 32 + 4 * 2048


def test_nothing_is_chosen_without_an_indexer() -> None:
    plain = model_spec("llama", LLAMA, TensorTable(files=(), groups=()))
    assert choosing(plain, "full", 1, 1, 65535)[1] == 0
