"""The card of a release gives the release back: every name, shape and dtype, and the config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.errors import CardError
from dayzero.schema import Column, Release, TensorGroup, TensorTable
from dayzero.stages.read import read
from dayzero.stages.read.card import Card, parse_card, read_card
from dayzero.stages.read.card_names import by_name
from dayzero.stages.read.card_of import card_of, same_tensors
from dayzero.stages.read.card_text import card_text
from dayzero.stages.read.spec import model_spec

CONFIG: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 100,
                          "intermediate_size": 128, "head_dim": 16, "num_key_value_heads": 2,
                          "tie_word_embeddings": False}
EXPERTS = {**CONFIG, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
           "n_shared_experts": 1, "first_k_dense_replace": 1}


def written(card: Card, folder: Path) -> Release:
    """The release of the card's text."""
    path = folder / "card.toml"
    path.write_text(card_text(card))
    assert parse_card(path) == card
    return read_card(path)


def release(config: dict[str, Any], *groups: tuple[str, tuple[int, ...], str, list[int], list[int]]) -> Release:
    """A release with these tensors: (pattern, shape, dtype, layers, experts), each row one tensor."""
    table = TensorTable(files=(), groups=tuple(
        TensorGroup(pattern=pattern, shape=shape, dtype=dtype, layer=Column(layers), expert=Column(experts),
                    file=Column(np.full(len(layers), -1)), start=Column(np.zeros(len(layers))))
        for pattern, shape, dtype, layers, experts in groups))  # fmt: skip
    return Release(name="made", origin="", has_weights=False, files=(), tensors=table, index=None, missing_shards=(),
                   config=config, model=model_spec("made", config, table), root=None)  # fmt: skip


@pytest.mark.parametrize(("name", "blocks", "rows"), [
    ("kimi-k3", 6, 24), ("deepseek-v3", 6, 7), ("gpt-oss-20b", 2, 6), ("qwen3-235b-a22b", 1, 0), ("kimi-k2.5", 2, 24),
    ("qwen3-next-80b-a3b", 2, 0), ("llama-3.1-8b", 1, 0), ("gemma-3-1b", 1, 0), ("smollm2-135m", 1, 0),
])  # fmt: skip
def test_shipped_cards_come_back(root: Path, tmp_path: Path, name: str, blocks: int, rows: int) -> None:
    """The same tensors, and no more words than a person needs: K3's 497,220 tensors are 6 blocks and 24 rows."""
    first = read_card(root / "examples" / "cards" / f"{name}.toml")
    card = card_of(first)
    assert (len(card.blocks), len(card.tensors)) == (blocks, rows)
    second = written(card, tmp_path)
    assert same_tensors(first.tensors, second.tensors) and second.tensors.total_bytes == first.tensors.total_bytes
    assert second.config == first.config and second.model == first.model
    again = card_of(second)
    assert msgspec.structs.replace(again, card=card.card) == card


def test_a_folder_s_card(root: Path, tmp_path: Path) -> None:
    from dayzero.stages.read import write_release

    folder = write_release(root / "examples" / "cards" / "gpt-oss-20b.toml", tmp_path / "gpt")
    found = read(folder, metadata_only=True)
    back = written(card_of(found), tmp_path)
    assert same_tensors(found.tensors, back.tensors) and back.config == found.config


def test_a_config_alone(tmp_path: Path) -> None:
    """Without tensors the card states those that the estimate counts, and says where they are from."""
    config = {**EXPERTS, "quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32],
                                                 "modules_to_not_convert": ["lm_head", "model.layers.1.mlp"]}}
    found = release(config)
    card = card_of(found)
    assert "there are no tensors" in card.card.sources[0]
    back = written(card, tmp_path).model
    assert back.parameters == found.model.parameters and back.checkpoint_bytes == found.model.checkpoint_bytes
    assert {family.pattern for family in back.families} == {family.pattern for family in found.model.families}


def test_names_of_other_families(tmp_path: Path) -> None:
    """Blocks are found by the roles of their weights, wherever they are and whatever they are called."""
    names = {"wq": (64, 64), "wk": (32, 64), "wv": (32, 64), "out_proj": (64, 64)}
    groups = [(f"transformer.h.{{L}}.attn.{name}.weight", shape, "BF16", [0, 1, 2], [-1] * 3)
              for name, shape in names.items()]  # fmt: skip
    found = release(CONFIG, *groups, ("transformer.wte.weight", (100, 64), "F16", [-1], [-1]))
    card = card_of(found)
    attention = next(block for block in card.blocks if block.use == "full_attention")
    assert attention.at == "transformer.h.{L}.attn." and attention.layers is None
    assert attention.rename == {"q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "out_proj"}
    assert [(row.name, row.dtype) for row in card.tensors] == []
    assert next(block for block in card.blocks if block.use == "embedding").dtype == "F16"
    assert same_tensors(written(card, tmp_path).tensors, found.tensors)


def test_layers_that_differ(tmp_path: Path) -> None:
    """One layer lacks a matrix, another has it in another dtype: the block says what it lacks, a row what differs."""
    up, down = ("model.layers.{L}.mlp.up_proj.weight", (128, 64)), ("model.layers.{L}.mlp.down_proj.weight", (64, 128))
    found = release(CONFIG, (*up, "BF16", [0, 1], [-1] * 2), (*up, "F32", [2], [-1]),
                    (*down, "BF16", [0, 1, 2], [-1] * 3),
                    ("model.layers.{L}.mlp.gate_proj.weight", (128, 64), "BF16", [1, 2], [-1] * 2))  # fmt: skip
    card = card_of(found)
    assert {(block.use, block.layers, tuple(block.without)) for block in card.blocks} == {
        ("gated_mlp", "1-2", ()), ("gated_mlp", "0", ("gate_proj",))}
    assert [(row.name, row.dtype, row.layers) for row in card.tensors] == [(up[0], "F32", "2")]
    assert same_tensors(written(card, tmp_path).tensors, found.tensors)


def test_experts_that_are_not_all_there(tmp_path: Path) -> None:
    """A layer with experts 0, 1 and 3 of 4, and one where one expert has another shape."""
    name = "model.layers.{L}.mlp.experts.{E}.up_proj.weight"
    found = release(EXPERTS, (name, (32, 64), "BF16", [1, 1, 1, 2, 2, 2], [0, 1, 3, 0, 1, 2]),
                    (name, (16, 64), "BF16", [2], [3]))  # fmt: skip
    card = card_of(found)
    assert same_tensors(written(card, tmp_path).tensors, found.tensors)
    assert set(found.tensors.names()) == set(written(card, tmp_path).tensors.names())
    assert "model.layers.{L}.mlp.experts.3.up_proj.weight" in by_name(found.tensors)


def test_a_table_of_quantisation_beside_the_config(tmp_path: Path) -> None:
    found = release(CONFIG)
    model = msgspec.structs.replace(found.model, quantization={"quant_algo": "FP8"})
    card = card_of(msgspec.structs.replace(found, model=model))
    assert card.config["quantization_config"] == {"quant_algo": "FP8"}


@pytest.mark.parametrize(("pattern", "dtype", "message"), [
    ("layer{L}.weight", "BF16", "no layers"), ("a.weight", "F5_E1M3", "F5_E1M3"),
])  # fmt: skip
def test_what_no_card_can_state(pattern: str, dtype: str, message: str) -> None:
    """A name that holds `{L}` itself, a dtype of tomorrow: an error, not another release."""
    with pytest.raises(CardError, match=message):
        card_of(release(CONFIG, (pattern, (2,), "BF16", [-1], [-1])) if dtype == "BF16" else msgspec.structs.replace(
            release(CONFIG), tensors=TensorTable(files=(), groups=(TensorGroup(
                pattern=pattern, shape=(2,), dtype=dtype, layer=Column([-1]), expert=Column([-1]), file=Column([-1]),
                start=Column([0]), item_bits=5),))))  # fmt: skip


NAMES = ["model.layers.{L}.self_attn.q_proj.weight", "model.layers.{L}.self_attn.q_proj.weight_scale_inv",
         "model.layers.{L}.self_attn.k_proj.weight", "model.layers.{L}.self_attn.v_proj.weight",
         "model.layers.{L}.self_attn.o_proj.weight", "model.layers.{L}.input_layernorm.weight",
         "model.layers.{L}.post_attention_layernorm.weight", "model.layers.{L}.mlp.up_proj.weight",
         "model.layers.{L}.mlp.down_proj.weight", "model.layers.{L}.ffn.w2.weight", "model.layers.{L}.ffn.w3.weight",
         "visual.blocks.{L}.attn.qkv.weight", "a.{L}.b.7.weight", "x"]  # fmt: skip
SHAPES = {"q_proj.weight": (64, 64), "k_proj.weight": (32, 64), "v_proj.weight": (32, 64), "o_proj.weight": (64, 64),
          "layernorm.weight": (64,), "up_proj.weight": (128, 64), "down_proj.weight": (64, 128), "w2.weight": (64, 128),
          "w3.weight": (128, 64), "scale_inv": (1, 1)}  # fmt: skip
EXPERT_NAMES = ["model.layers.{L}.mlp.experts.{E}.up_proj.weight", "model.layers.{L}.mlp.experts.{E}.down_proj.weight",
                "model.layers.{L}.moe.experts.{E}.w1.weight"]  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> Release:
    """Releases whose layers hold this and that, mostly of the sizes that the config asks for."""
    cells: dict[tuple[str, tuple[int, ...], str], list[tuple[int, int]]] = {}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1)):
        usual = next((shape for end, shape in SHAPES.items() if name.endswith(end)), (3, 5))
        for layer in draw(st.sets(st.integers(0, 3), min_size=1)) if "{L}" in name else [-1]:
            shape = draw(st.sampled_from([usual, usual, usual, (7,)]))
            dtype = draw(st.sampled_from(["BF16", "BF16", "F32", "F8_E4M3"]))
            cells.setdefault((name, shape, dtype), []).append((layer, -1))
    for name in draw(st.lists(st.sampled_from(EXPERT_NAMES), unique=True)):
        for layer in draw(st.sets(st.integers(0, 3), min_size=1)):
            dtype = draw(st.sampled_from(["BF16", "F32"]))
            experts = draw(st.sampled_from([range(4), range(4), range(3), (1, 2), (0,)]))
            cells.setdefault((name, (32, 64), dtype), []).extend((layer, expert) for expert in experts)
    groups = [(name, shape, dtype, [row[0] for row in rows], [row[1] for row in rows])
              for (name, shape, dtype), rows in cells.items()]  # fmt: skip
    return release(draw(st.sampled_from([CONFIG, EXPERTS])), *groups)


@settings(deadline=None, max_examples=25)
@given(found=tables())
def test_any_tensors_come_back(found: Release, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Card -> release -> card -> release: the tensors stay, and so does the card."""
    folder = tmp_path_factory.mktemp("cards")
    first = card_of(found)
    back = written(first, folder)
    assert same_tensors(back.tensors, found.tensors)
    assert sorted(back.tensors.names()) == sorted(found.tensors.names())
    second = card_of(back)
    assert msgspec.structs.replace(second, card=first.card) == first
    assert same_tensors(written(second, folder).tensors, found.tensors)
