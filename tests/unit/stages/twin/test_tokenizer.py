"""The byte-level tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dayzero.stages.twin.tokenizer import byte_characters, byte_tokenizer, special_names

CONFIG = {"bos_token_id": 256, "eos_token_id": [257, 258], "pad_token_id": 257}
IDS = {256: "bos_token_id", 257: "eos_token_id", 258: "eos_token_id", 259: "text_config.image_token_index"}


def test_one_character_for_each_byte() -> None:
    characters = byte_characters()
    assert len(set(characters)) == 256
    assert (characters[ord("A")], characters[ord(" ")], characters[0]) == ("A", "Ġ", "Ā")  # as in GPT-2's vocabulary


def test_special_tokens_are_named_by_their_keys() -> None:
    assert special_names(IDS) == {256: "<|bos|>", 257: "<|eos|>", 258: "<|eos_2|>", 259: "<|image|>"}


def test_files() -> None:
    files = {name: json.loads(text) for name, text in byte_tokenizer(IDS, CONFIG, 4096).items()}
    about = files["tokenizer_config.json"]
    assert (about["bos_token"], about["eos_token"], about["pad_token"]) == ("<|bos|>", "<|eos|>", "<|eos|>")
    assert about["model_max_length"] == 4096
    assert [one["id"] for one in files["tokenizer.json"]["added_tokens"]] == [256, 257, 258, 259]


def test_transformers_reads_any_text_back(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for name, text in byte_tokenizer(IDS, CONFIG, 4096).items():
        (tmp_path / name).write_text(text)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("Hello wörld", "日本語\n\t x", "a  b", "\x00\x7f", ""):
        ids = tokenizer(text)["input_ids"]
        assert ids == list(text.encode())
        assert tokenizer.decode(ids) == text
    assert tokenizer("a<|eos|>")["input_ids"] == [97, 257]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False) == "user: Hi\n"
