"""Releases that nobody publishes in good faith: each ends soon, in a release or in two lines, whatever is in them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.errors import CardError, DayzeroError, ReleaseError
from dayzero.schema import TensorTable, from_json, to_json
from dayzero.stages.read import read, write_release
from dayzero.stages.read.config import MOST_UNKNOWN, Config
from dayzero.stages.read.headers import Header, decode, rows
from dayzero.stages.read.index import choose
from dayzero.stages.read.names import table
from dayzero.stages.read.spec import model_spec

NO_TENSORS = TensorTable(files=(), groups=())
DENSE: dict[str, Any] = {
    "model_type": "some", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 100,
    "intermediate_size": 128, "tie_word_embeddings": False, "num_key_value_heads": 2, "sliding_window": 16,
}  # fmt: skip
EXPERTS = {**DENSE, "n_routed_experts": 8, "num_experts_per_token": 2, "moe_intermediate_size": 32,
           "first_k_dense_replace": 1, "moe_layer_freq": 1, "kv_lora_rank": 16, "layer_types": ["full_attention"] * 4,
           "mlp_only_layers": [0], "sliding_window_pattern": 2, "quantization_config": {"quant_method": "fp8"}}
ODD = st.sampled_from([2**70, 10**12, 10**6, 10**4000, 0, -1, 1.5, float("nan"), float("inf"), "8", "²", "9" * 5000,
                       "1,2,", True, None, [], {}, [2**70], [[[]]], ["x\n" * 1000], {"a": {"b": 1}}])  # fmt: skip
CPU = time.process_time


def written(folder: Path, config: object = DENSE) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def two_lines(error: DayzeroError) -> bool:
    return all(text and text.isprintable() and len(text) < 700 for text in (error.message, error.hint))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(list(EXPERTS)), ODD, min_size=1, max_size=3))
def test_a_config_of_odd_values(changes: dict[str, Any]) -> None:
    try:
        model = model_spec("odd", {**EXPERTS, **changes}, NO_TENSORS)
    except DayzeroError as error:
        assert two_lines(error)
    else:
        assert all(text.isprintable() and len(text) < 1300 for text in model.unknowns)
        assert from_json(to_json(model), type(model)) == model


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(
    st.sampled_from(["a", "layers.0.mlp.up_proj.weight", "layers.99999999999.experts.7.up_proj", "{L}", "."]),
    st.sampled_from(["BF16", "U8", "F4", "X", ""]),
    st.lists(st.sampled_from([0, 1, 2, 3, 2**62]), max_size=4) | st.just([1] * 70) | st.just([2**62] * 60),
    st.sampled_from([0, 1, 2, 4, 12, 2**62]),
), max_size=4))  # fmt: skip
def test_a_header_of_odd_tensors(tensors: list[tuple[str, str, list[int], int]]) -> None:
    at, entries = 0, {}
    for name, dtype, shape, size in tensors:
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    try:
        found = table(("x",), [rows(Header(name="x", size=8 + len(text) + at, data_start=8 + len(text),
                                           entries=decode(text, "x")))])
    except ReleaseError as error:
        assert two_lines(error)
    else:
        assert found.count == len(entries)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["model-00001-of-00002.safetensors", "x-²-of-³.safetensors", "a", "model.safetensors",
                                 f"m-1-of-{'9' * 5000}.safetensors", "m-1-of-999999999.safetensors"])),
       st.none() | st.dictionaries(st.sampled_from(["t", "u"]), st.sampled_from(["a", "b-1-of-2.safetensors"])))
def test_an_index_and_odd_names_of_files(names: list[str], weight_map: dict[str, str] | None) -> None:
    shards = choose(names, weight_map)
    assert set(shards.present) <= set(names) and not set(shards.missing) & set(names)
    assert len(shards.missing) <= 2


@pytest.mark.parametrize("changes", [
    {"num_hidden_layers": 20_000, "layer_types": None, "mlp_only_layers": []},
    {"num_hidden_layers": 20_000, "moe_layer_freq": [1] * 20_000, "layer_types": ["w"] * 20_000},
    {"layer_types": [f"w{number}" for number in range(300_000)]},
    {f"key{number}": number for number in range(200_000)},
])  # fmt: skip
@pytest.mark.slow
def test_a_large_config_takes_linear_time(changes: dict[str, Any]) -> None:
    started = CPU()
    model_spec("large", {**EXPERTS, **changes}, NO_TENSORS)
    assert CPU() - started < 20  # a few seconds; a minute and more with one loop inside another


def test_unknown_keys_are_counted_where_they_are_too_many_and_shown_on_one_line() -> None:
    found = Config({f"key{number}": 1 for number in range(MOST_UNKNOWN + 5)}).unknown_keys()
    assert len(found) == MOST_UNKNOWN + 1 and found[-1] == "5 more keys"
    assert Config({"a\nb\x1b[31m": 1}).unknown_keys() == (r"a\nb\x1b[31m",)
    assert len(Config({"k" * 10_000: 1}).unknown_keys()[0]) == 200


@pytest.mark.parametrize("kind", ["names", "shapes"])
def test_tensors_of_too_many_kinds(kind: str) -> None:
    count, ends = 30_000, [0]
    entries = {}
    for number in range(count):
        shape = [1 + number % 300, 1 + number // 300] if kind == "shapes" else [1]
        ends.append(ends[-1] + shape[0] * (shape[1] if len(shape) > 1 else 1))
        name = f"model.layers.{number}.mlp.up_proj.weight" if kind == "shapes" else f"t{number}x"
        entries[name] = {"dtype": "U8", "shape": shape, "data_offsets": ends[-2:]}
    started = CPU()
    with pytest.raises(ReleaseError, match="of 30000 kinds"):
        rows(Header(name="x", size=ends[-1], data_start=0, entries=decode(json.dumps(entries).encode(), "x")))
    assert CPU() - started < 5


def test_shapes_that_differ_in_every_layer_take_linear_time() -> None:
    entries, at = {}, 0
    for number in range(4000):
        for name, rows_ in (("weight", number + 1), ("weight_scale_inv", 1)):
            entries[f"model.layers.{number}.mlp.up_proj.{name}"] = {
                "dtype": "U8", "shape": [rows_, number + 1], "data_offsets": [at, at + rows_ * (number + 1)]}
            at += rows_ * (number + 1)
    tensors = table(("x",), [rows(Header(name="x", size=at, data_start=0,
                                         entries=decode(json.dumps(entries).encode(), "x")))])
    started = CPU()
    model_spec("large", {**DENSE, "num_hidden_layers": 4000}, tensors)
    assert CPU() - started < 10


def test_an_index_of_too_many_files(tmp_path: Path) -> None:
    names = {f"t{number}": f"{number}.safetensors" for number in range(20_000)}
    (written(tmp_path / "r") / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(ReleaseError, match="names 20000 files"):
        read(tmp_path / "r")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json",
                                  "dayzero-manifest.json", "hf_quant_config.json"])  # fmt: skip
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path),
                                  lambda path: os.symlink(path.name, path)])  # fmt: skip
def test_what_is_no_file_is_not_read(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    root = written(tmp_path / "r")
    (root / name).unlink(missing_ok=True)
    make(root / name)
    with pytest.raises(ReleaseError) as error:
        read(root)
    assert name in error.value.message and two_lines(error.value)


@pytest.mark.skipif(os.getuid() == 0, reason="nothing is unreadable for this user")
@pytest.mark.parametrize("name", [".", "sub", "config.json", "model.safetensors"])
def test_what_may_not_be_read(tmp_path: Path, name: str) -> None:
    root = written(tmp_path / "r")
    (root / "sub").mkdir()
    (root / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (root / name).chmod(0)
    try:
        with pytest.raises(ReleaseError, match="cannot read"):
            read(root)
    finally:
        (root / name).chmod(0o700)


def test_a_state_that_cannot_be_asked_for_is_not_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **how: Any) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    root = written(tmp_path / "r")
    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ReleaseError, match=r"cannot read config\.json: Permission denied"):
        read(root)


@pytest.mark.parametrize("source", ["/" + "a" * 5000, "a/" * 3000, "a\0b", "a\udcff", "a\nb"])
@pytest.mark.parametrize("ending", ["", ".toml"])
def test_paths_that_no_file_can_have(source: str, ending: str) -> None:
    with pytest.raises((ReleaseError, CardError)) as error:
        read(source + ending)
    assert two_lines(error.value)


@pytest.mark.parametrize("row", [
    'layers = "²"', 'layers = "1-²"', f'layers = "0-{"9" * 5000}"', 'layers = "5-1"', "experts = 1000000000000",
    f"layers = [{10**30}]", "layers = [-1]",
])  # fmt: skip
def test_a_card_with_odd_layers(tmp_path: Path, row: str) -> None:
    card = tmp_path / "odd.toml"
    text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in DENSE.items())
    card.write_text(f'[card]\nname = "odd"\n[config]\n{text}\n[[tensors]]\nname = "a.{{L}}"\nshape = [1]\n{row}\n')
    with pytest.raises(CardError) as error:
        read(card)
    assert two_lines(error.value)


def test_a_card_with_odd_shapes_and_many_tensors(tmp_path: Path) -> None:
    text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in DENSE.items())
    card = tmp_path / "odd.toml"
    card.write_text(f'[card]\nname = "odd"\n[config]\n{text}\n'
                    f'[[tensors]]\nname = "a"\nshape = [{", ".join(["1000000"] * 50_000)}]\n')
    with pytest.raises(CardError, match="makes no sense") as error:
        read(card)
    assert two_lines(error.value)
    card.write_text(f'[card]\nname = "odd"\n[config]\n{text}\n'
                    + "".join(f'[[tensors]]\nname = "t{number}x"\nshape = [1]\n' for number in range(12_000)))
    with pytest.raises(CardError, match="kinds"):
        read(card)


@pytest.mark.parametrize("name", ["a" * 5000, "file/x"])
def test_a_release_is_not_written_where_there_can_be_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    source = read(written(tmp_path / "r"), metadata_only=True)
    with pytest.raises(DayzeroError, match="cannot write") as error:
        write_release(source, tmp_path / name)
    assert two_lines(error.value)
