"""Which layers a twin keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import tiny_release as tiny
from tests.support import twins

from dayzero.errors import UsageError
from dayzero.schema import Release
from dayzero.stages.read import read
from dayzero.stages.twin.layers import choose_layers


def release(folder: Path, tensors: tiny.Tensors, **config: object) -> Release:
    return read(tiny.write(folder, tensors, {**tiny.CONFIG, **config}), metadata_only=True)


def test_every_kind_of_the_config(tmp_path: Path) -> None:
    card = read(twins.CARDS / "kimi-k3.toml")
    kept = choose_layers(card, None, [])
    kinds = {(card.model.layers[one].attention, card.model.layers[one].feed_forward) for one in kept.layers}
    assert kinds == {(layer.attention, layer.feed_forward) for layer in card.model.layers}
    assert kept.layers == (0, 1, 2, 3)


def test_a_layer_that_only_its_tensors_show_takes_a_place(tmp_path: Path) -> None:
    """Layer 7 is stored in another dtype; no rule goes by numbers, so any layer may come third."""
    tensors = {name: (shape, "F32" if ".7." in name and "mlp" in name else dtype)
               for name, (shape, dtype) in tiny.dense_tensors().items()}
    kept = choose_layers(release(tmp_path / "r", tensors), None, [])
    assert len(kept.layers) == 4
    assert 7 in kept.layers
    assert kept.left_out == 0
    assert kept.new(7) == kept.layers.index(7)
    assert kept.new(11) is None


def test_layers_behind_the_last_follow_the_last(tmp_path: Path) -> None:
    kept = choose_layers(read(twins.CARDS / "deepseek-v3.toml"), 6, [])
    assert (kept.new(61), kept.new(62), kept.new(5)) == (6, 7, 5)


def test_a_rule_by_numbers_keeps_each_place_its_kind(tmp_path: Path) -> None:
    """Every sixth layer sees all tokens; layer 8 has other tensors, and stands where a sliding layer stood."""
    tensors = {name: (shape, "F32" if ".8." in name and "mlp" in name else dtype)
               for name, (shape, dtype) in tiny.dense_tensors().items()}
    made = release(tmp_path / "r", tensors, sliding_window=128, sliding_window_pattern=6)
    kept = choose_layers(made, None, [])
    kinds = [made.model.layers[one].attention for one in kept.layers]
    assert kinds == ["sliding"] * 5 + ["full"]
    assert 8 in kept.layers
    assert kept.layers[5] == 5


@pytest.mark.parametrize("asked", [1, 3, 94])
def test_numbers_of_layers_that_cannot_be(asked: int) -> None:
    with pytest.raises(UsageError, match="the first 4 are the fewest"):
        choose_layers(read(twins.CARDS / "kimi-k3.toml"), asked, [])


def test_as_many_layers_as_asked() -> None:
    assert len(choose_layers(read(twins.CARDS / "kimi-k3.toml"), 9, []).layers) == 9
