"""A card's TOML reads back as the card, whatever the config holds."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.errors import CardError
from dayzero.stages.read.card import About, BlockRequest, Card, TensorRequest, parse_card, read_card
from dayzero.stages.read.card_nulls import with_nulls, without_nulls
from dayzero.stages.read.card_text import card_text

KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(["a.b", "a/b", "a~b", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(config=st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_config_comes_back(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    card = Card(card=About(name="any"), config=config)
    path = tmp_path_factory.mktemp("cards") / "card.toml"
    path.write_text(card_text(card), encoding="utf-8")
    assert parse_card(path) == card


def test_what_it_looks_like() -> None:
    """Long lists take several lines, tables that fit stay on theirs, and what is usual is not said."""
    card = Card(card=About(name="x"), config={"layer_types": ["sliding_attention"] * 8, "rope": {"factor": 8.0},
                                              "deep": {"words": "w" * 120, "none": None}},
                blocks=(BlockRequest(use="norms", without=["input_layernorm"]),),
                tensors=[TensorRequest(name="a.{L}", shape=[2, "heads"], layers="all")])  # fmt: skip
    text = card_text(card)
    assert max(map(len, text.splitlines())) <= 132  # the word of 120 letters
    assert 'nulls = ["/deep/none"]' in text and "rope = {factor = 8.0}" in text and "[config.deep]" in text
    assert text.endswith('[[blocks]]\nuse = "norms"\nwithout = ["input_layernorm"]\n\n'
                         '[[tensors]]\nname = "a.{L}"\nshape = [2, "heads"]\nlayers = "all"\n')
    assert len(tomllib.loads(text)["config"]["layer_types"]) == 8


def test_no_blocks_are_not_the_standard_ones(tmp_path: Path) -> None:
    config = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 4,
              "intermediate_size": 8}  # fmt: skip
    path = tmp_path / "card.toml"
    path.write_text(card_text(Card(card=About(name="x"), config=config, blocks=(),
                                   tensors=[TensorRequest(name="only.weight", shape=[3])])))  # fmt: skip
    assert list(read_card(path).tensors.names()) == ["only.weight"]


def test_nulls_are_pointed_to() -> None:
    """RFC 6901: ~0 and ~1 stand for ~ and /; positions in a list count in the list with its nulls."""
    config = {"a/b~": None, "list": [None, 1, [None, 2], None], "in": {"x": None}}
    kept, nulls = without_nulls(config)
    assert kept == {"list": [1, [2]], "in": {}}
    assert nulls == ["/a~1b~0", "/list/0", "/list/3", "/list/2/0", "/in/x"]
    assert with_nulls(kept, nulls) == config


@pytest.mark.parametrize("pointer", ["/a/b", "/list/x", "/list/9/1"])
def test_a_pointer_to_nowhere(tmp_path: Path, pointer: str) -> None:
    path = tmp_path / "card.toml"
    path.write_text(f'[card]\nname = "x"\nnulls = ["{pointer}"]\n[config]\na = 1\nlist = [1]\n')
    with pytest.raises(CardError, match="nowhere"):
        parse_card(path)
