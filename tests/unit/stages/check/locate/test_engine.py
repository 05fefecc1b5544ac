"""A running engine's own model against the release: other names, fused layers, the residual handed on apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.engine_like import EngineLike

import dayzero
from dayzero.stages.check.compare import compare
from dayzero.stages.check.locate import locate

IDS = torch.tensor([[5, 17, 3, 60, 2, 2, 41, 8, 33, 7, 19]])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release, a dump of it with noise, and dumps of an engine that is right and of one whose keys are turned three
    positions for each."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("engine")
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2)
    model: Any = LlamaForCausalLM(config).eval()
    model.save_pretrained(root / "release")
    with torch.no_grad():
        with dayzero.record(model, root / "reference"):
            model(input_ids=IDS)
        for name, stride in (("right", 1), ("wrong", 3)):
            engine = EngineLike(model, stride)
            with dayzero.record(engine, root / name, modules="all"):
                engine(IDS[0], torch.arange(IDS.shape[1]))
    return root


def test_an_engine_that_is_right_passes(made: Path) -> None:
    found = compare(made / "reference", made / "right")
    assert found.passed, [check for check in found.checks if not check.passed]
    compared = {place.name for place in found.places}
    assert {"model.layers.0 output", "model.layers.1.input_layernorm input hidden_states",
            "model.layers.1.self_attn.k_proj output", "model.layers.1.mlp.up_proj output",
            "model.norm input hidden_states"} <= compared
    assert any("hands the residual on apart" in note for note in found.told)


def test_only_attention_diverges_where_keys_are_turned_otherwise(made: Path) -> None:
    found = compare(made / "reference", made / "wrong")
    assert not found.passed and found.first_divergence is not None
    assert found.first_divergence.module == "model.layers.0.self_attn"


def test_locating_blames_nothing_in_an_engine_that_is_right(made: Path) -> None:
    found = locate(made / "release", made / "right")
    assert not found.located and len(found.places) > 30


def test_locating_tells_at_which_positions_keys_were_turned(made: Path) -> None:
    first = locate(made / "release", made / "wrong", looked_into=1).first
    assert first is not None and first.module == "model.layers.0.self_attn"
    assert "rotary embedding" in first.causes[0].words and first.causes[0].explained > 0.999
    assert "key of attn: token t as at position 3 t" in first.causes[0].words, first.causes[0].words
    assert "query" not in first.causes[0].words
