"""Twins of cards and of small releases in every format: names, shapes, values, files, and what cannot be."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import quantised, twins
from tests.support import tiny_release as tiny

from dayzero.errors import StoreError, UsageError
from dayzero.schema import Release, TensorTable
from dayzero.stages.read import read
from dayzero.stages.twin import twin, write

CARDS = ["deepseek-v3", "gemma-3-1b", "gpt-oss-20b", "kimi-k3", "qwen3-235b-a22b", "smollm2-135m"]


def kinds(release: Release) -> set[tuple[str, str, str, int, str]]:
    """What a twin must not change: roles, patterns, dtypes, axes, schemes."""
    return {(one.role, one.pattern, one.dtype, len(one.shape), one.scheme) for one in release.model.families}


@pytest.mark.parametrize("card", CARDS)
def test_the_same_tensors_in_small(card: str, tmp_path: Path) -> None:
    original = read(twins.CARDS / f"{card}.toml")
    made = twin(original, tmp_path / "t")
    small = read(tmp_path / "t")
    assert kinds(small) == kinds(original)
    assert small.index is None
    assert small.model.unknowns == original.model.unknowns
    assert {layer.attention for layer in small.model.layers} == {layer.attention for layer in original.model.layers}
    assert small.model.mtp_layers == original.model.mtp_layers
    assert small.config.keys() == original.config.keys()
    assert made.tensor_bytes == small.model.checkpoint_bytes < 60e6
    assert made.parameters == small.model.parameters
    assert not [note for note in made.notes if "kept" in note]


@pytest.mark.parametrize("card", ["deepseek-v3", "gpt-oss-20b", "kimi-k3"])
def test_values_are_sane(card: str, tmp_path: Path) -> None:
    twins.of_card(card, tmp_path / "t")
    weights = twins.matrices(twins.stored(tmp_path / "t"))
    for name, values in weights.items():
        assert np.isfinite(values).all(), name
        if values.ndim in (2, 3) and values.size > 20000 and "conv" not in name and "pos_emb" not in name:
            spread = values.std() * values.shape[-1] ** 0.5
            assert 0.93 < spread < 1.07, (name, spread)
    norms = [values.mean() for name, values in weights.items() if name.endswith("input_layernorm")]
    assert all(abs(mean - 1) < 0.01 for mean in norms)


@pytest.mark.parametrize("form", sorted(quantised.ALL))
def test_every_format_of_a_release(form: str, tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "r", quantised.tensors(form), quantised.config(quantised.ALL[form]))
    original = read(folder)
    twin(original, tmp_path / "t", scale=2)
    small = read(tmp_path / "t")
    assert kinds(small) == kinds(original)
    assert small.model.hidden_size == 128
    stored = twins.stored(tmp_path / "t")
    assert all(np.isfinite(twins.numbers(dtype, items)).all() for dtype, items in stored.values())
    values = twins.matrices(stored)["model.layers.0.mlp.down_proj"]
    assert abs(values.std() * values.shape[1] ** 0.5 - 1) < 0.05


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        twins.of_card("gpt-oss-20b", tmp_path / name, seed=seed)
    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "abc"]
    assert contents[0] == contents[1]
    assert contents[0].keys() == contents[2].keys()
    assert all((contents[0][name] == contents[2][name]) == (not name.endswith("safetensors")) for name in contents[0])


def test_tensors_stay_in_their_files(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "r", tiny.expert_tensors(), tiny.EXPERT_CONFIG, shards=12)
    original = read(folder)
    made = twin(original, tmp_path / "t")
    small = read(tmp_path / "t")
    assert made.files == len(small.tensors.files) > 3
    assert small.tensors.files[0] == f"model-00001-of-{made.files:05d}.safetensors"
    old, new = places(original), places(small)
    pairs = sorted({(old[name], file) for name, file in new.items()})
    assert [file for _, file in pairs] == sorted({file for _, file in pairs})  # one new file for each old one, in order
    index = json.loads((tmp_path / "t" / "model.safetensors.index.json").read_text())
    assert len(index["weight_map"]) == made.tensors
    assert index["metadata"]["total_size"] == made.tensor_bytes


def places(release: Release) -> dict[str, int]:
    """File of the tensors of the first layer, by number."""
    table: TensorTable = release.tensors
    return {group.name(row): int(group.file.values[row]) for group in table.groups for row in range(group.count)
            if ".layers.0." in group.name(row)}  # fmt: skip


def test_code_and_texts_come_along_and_json_is_renamed(tmp_path: Path) -> None:
    code = {"AutoModelForCausalLM": "modeling_tiny.Tiny"}
    config = {**tiny.CONFIG, "vocab_size": 512, "eos_token_id": 500, "auto_map": code}
    tensors = {**tiny.dense_tensors(), "model.embed_tokens.weight": ((512, tiny.HIDDEN), "BF16")}
    folder = tiny.write(tmp_path / "r", tensors, config)
    (folder / "modeling_tiny.py").write_text("class Tiny: ...\n")
    (folder / "generation_config.json").write_text('{"eos_token_id": [500], "temperature": 0.6}')
    (folder / "hf_quant_config.json").write_text('{"exclude_modules": ["model.layers.3.mlp", "model.layers.9.mlp"]}')
    (folder / "tokenizer.model").write_bytes(b"binary")
    twin(read(folder, metadata_only=True), tmp_path / "t")
    assert (tmp_path / "t" / "modeling_tiny.py").read_text() == "class Tiny: ...\n"
    generation = json.loads((tmp_path / "t" / "generation_config.json").read_text())
    assert generation == {"eos_token_id": [256], "temperature": 0.6}
    quant = json.loads((tmp_path / "t" / "hf_quant_config.json").read_text())
    assert quant == {"exclude_modules": ["model.layers.3.mlp"]}
    assert not (tmp_path / "t" / "tokenizer.model").exists()
    assert json.loads((tmp_path / "t" / "tokenizer_config.json").read_text())["eos_token"] == "<|eos|>"


def test_a_vocabulary_too_small_for_bytes_is_kept(tmp_path: Path) -> None:
    made = twin(read(tiny.write(tmp_path / "r", tiny.dense_tensors())), tmp_path / "t")
    assert read(tmp_path / "t").model.vocab_size == tiny.VOCAB
    assert any("no tokenizer" in note for note in made.notes)
    assert not (tmp_path / "t" / "tokenizer.json").exists()


def test_a_small_tokenizer_is_kept_with_its_vocabulary(tmp_path: Path) -> None:
    tensors = {**tiny.dense_tensors(), "model.embed_tokens.weight": ((4096, tiny.HIDDEN), "BF16")}
    folder = tiny.write(tmp_path / "r", tensors, {**tiny.CONFIG, "vocab_size": 4096, "eos_token_id": 4095})
    (folder / "tokenizer.json").write_text("{}")
    twin(read(folder), tmp_path / "t")
    small = read(tmp_path / "t")
    assert (small.model.vocab_size, small.config["eos_token_id"]) == (4096, 4095)
    assert (tmp_path / "t" / "tokenizer.json").read_text() == "{}"


def test_the_summary_says_what_changed(tmp_path: Path) -> None:
    made = twins.of_card("kimi-k3", tmp_path / "t")
    numbers = {one.fact: one for one in made.numbers}
    assert (numbers["experts"].original, numbers["experts"].twin) == (896, 8)
    assert numbers["experts"].keys == ("text_config.num_experts",)
    assert (numbers["shared_width"].original, numbers["shared_width"].keys) == (6144, ())
    assert numbers["text_config.attn_res_block_size"].twin == 2
    assert made.names == "card"
    assert made.layers == (0, 1, 2, 3)


@pytest.mark.parametrize("make", ["file", "full", "link"])
def test_a_place_that_is_taken(make: str, tmp_path: Path) -> None:
    out = tmp_path / "t"
    if make == "file":
        out.write_text("x")
    elif make == "link":
        out.symlink_to(tmp_path)
    else:
        out.mkdir()
        (out / "x").touch()
    with pytest.raises(UsageError, match="not an empty folder"):
        twins.of_card("gpt-oss-20b", out)


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    twins.of_card("gpt-oss-20b", tmp_path / "t")
    assert (tmp_path / "t" / "config.json").exists()


@pytest.mark.parametrize("options", [{"scale": 1000.0}, {"scale": 0.1}, {"layers": 1}, {"layers": 25}])
def test_what_cannot_be_leaves_nothing(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        twins.of_card("gpt-oss-20b", tmp_path / "t", **options)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write._shard

    def full(path: Path, *rest: Any) -> None:
        whole(path, *rest)
        if "00002" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(write, "_shard", full)
    with pytest.raises(StoreError, match="No space left"):
        twins.of_card("gpt-oss-20b", tmp_path / "t")
    assert not list(tmp_path.iterdir())


def test_too_little_space_is_seen_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(StoreError, match="1 are free"):
        twins.of_card("gpt-oss-20b", tmp_path / "t")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_layers_and_scale_as_asked(tmp_path: Path) -> None:
    made = twins.of_card("gpt-oss-20b", tmp_path / "t", layers=7, scale=4)
    small = read(tmp_path / "t")
    assert len(small.model.layers) == len(made.layers) == 7
    assert abs(made.scale / 4 - 1) < 0.2
    assert small.config["layer_types"] == ["sliding_attention", "full_attention"] * 3 + ["sliding_attention"]
    assert counts(one.fact for one in made.numbers) == {1}


def test_a_scale_that_cannot_be_met_is_told(tmp_path: Path) -> None:
    made = twins.of_card("gemma-3-1b", tmp_path / "t", scale=30)  # 1152 is a multiple of 128: 64 would not be one
    assert made.scale < 20
    assert any("times narrower, not 30" in note for note in made.notes)


def counts(names: Iterable[str]) -> set[int]:
    return set(Counter(names).values())
