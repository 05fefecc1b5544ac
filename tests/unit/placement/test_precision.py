"""Models in another precision than their release."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.config_release import LLAMA, release

from dayzero.data.precisions import precision, variant
from dayzero.placement.precision import recast, with_kv_heads
from dayzero.stages.read import read


def test_experts_in_four_bits_as_published(root: Path) -> None:
    # a mixture of bf16 becomes 4.5 bits for routed experts, the rest stays
    model = read(str(root / "examples/cards/qwen3-235b-a22b.toml")).model
    wanted = precision("int4")
    assert wanted
    made = recast(model, wanted)
    for before, after in zip(model.families, made.families, strict=True):
        if before.experts:
            assert after.stored_bytes == pytest.approx(before.parameters * 4.5 / 8, abs=1)
            assert (after.scheme, after.block) == ("int4", 32)
        else:
            assert after == before


def test_what_is_in_that_precision_stays(root: Path) -> None:
    model = read(str(root / "examples/cards/deepseek-v3.toml")).model
    wanted = precision("fp8")
    assert wanted and recast(model, wanted) is model


def test_back_to_sixteen_bits(root: Path) -> None:
    model = read(str(root / "examples/cards/deepseek-v3.toml")).model
    wanted = precision("bf16")
    assert wanted
    made = recast(model, wanted)
    assert made.checkpoint_bytes == pytest.approx(2 * model.parameters, rel=0.001)
    assert all(family.block == 1 for family in made.families if family.experts)


def test_a_published_variant(tmp_path: Path) -> None:
    # only feed-forward blocks are in 8 bits, and not those of two layers (Llama-3.1-405B-Instruct-FP8's config.json)
    model = release(tmp_path, {**LLAMA, "num_hidden_layers": 126}).model
    wanted, published = precision("fp8"), variant("llama-3.1-405b-instruct-fp8")
    assert wanted and published
    made = {family.role: family for family in recast(model, wanted, published).families}
    old = {family.role: family for family in model.families}
    assert made["attention.q"] == old["attention.q"]
    assert made["mlp.up"].stored_bytes == pytest.approx(old["mlp.up"].parameters * (124 * 1 + 2 * 2) / 126, rel=0.001)


def test_key_value_heads_twice(tmp_path: Path) -> None:
    model = release(tmp_path, LLAMA).model
    made = with_kv_heads(model, 16)
    assert next(iter(made.attentions.values())).kv_heads == 16
    grown = sum(family.parameters for family in made.families) - sum(family.parameters for family in model.families)
    assert grown == 32 * 2 * 4096 * 8 * 128
