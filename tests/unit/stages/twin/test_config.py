"""The twin's config: every key, other numbers."""

from __future__ import annotations

from typing import Any

import pytest

from dayzero.stages.twin.config import changed_numbers, new_ids, renamed, token_ids
from dayzero.stages.twin.layers import Kept

KEPT = Kept(layers=(0, 1, 5, 3), total=8, towers={"vision_config": (0, 6)}, depths={"vision_config": 9})


@pytest.mark.parametrize(("name", "new"), [
    ("model.layers.5.mlp", "model.layers.2.mlp"), ("model.layers.5*", "model.layers.2*"), ("lm_head", "lm_head"),
    ("re:.*layers\\.5\\.self_attn", "re:.*layers\\.2\\.self_attn"), ("model.layers.*.mlp", "model.layers.*.mlp"),
    ("model.layers.8.eh_proj", "model.layers.4.eh_proj"),
    ("model.visual.blocks.6.attn", "model.visual.blocks.1.attn"),
    ("mtp.layers.0.fc", "mtp.layers.0.fc"), ("transformer.h.5.attn", "transformer.h.2.attn"),
])  # fmt: skip
def test_names_of_layers(name: str, new: str) -> None:
    assert renamed({"ignore": [name]}, KEPT, {}) == {"ignore": [new]}


def test_names_of_layers_that_are_gone_are_gone() -> None:
    ignore = ["model.layers.2.mlp", "model.layers.0.mlp", "visual.blocks.3.attn"]
    assert renamed({"q": {"ignore": ignore}}, KEPT, {}) == {"q": {"ignore": ["model.layers.0.mlp"]}}


def test_token_ids_follow_the_bytes() -> None:
    config: dict[str, Any] = {"bos_token_id": 163584, "eos_token_id": [163586, 7], "pad_token_id": None, "top_k": 50,
                              "text_config": {"eos_token_id": 163586, "image_token_index": 200000}}
    ids = token_ids(config)
    assert ids == {163584: "bos_token_id", 163586: "eos_token_id", 7: "eos_token_id",
                   200000: "text_config.image_token_index"}
    new = new_ids(ids, 163840, 512, 256)
    assert new == {7: 256, 163584: 257, 163586: 258, 200000: 512 + 200000 - 163840}  # behind the vocabulary stays there
    made = renamed(config, KEPT, new)
    assert made["eos_token_id"] == [258, 256]
    assert made["top_k"] == 50
    assert made["pad_token_id"] is None


def test_numbers_that_changed() -> None:
    old = {"a": {"width": 64, "name": "x", "eos_token_id": 9}, "layers": 30, "same": 1}
    assert changed_numbers(old, {"a": {"width": 8, "name": "x", "eos_token_id": 1}, "layers": 4, "same": 1}) == [
        ("a.width", 64, 8), ("layers", 30, 4)]
