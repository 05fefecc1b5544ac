"""A tokenizer for any vocabulary: one token for each byte, and the special tokens that the config names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

BYTES = 256
_TEMPLATE = ("{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}")


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in byte-level tokenizers: itself where it prints as one, else
    one from U+0100 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(BYTES)]


def special_names(ids: Mapping[int, str]) -> dict[int, str]:
    """Id -> text of a special token, from the config key that names it."""
    names: dict[int, str] = {}
    for one, key in sorted(ids.items()):
        base = key.rpartition(".")[2]
        for end in ("_token_ids", "_token_id", "_token_indices", "_token_index"):
            base = base.removesuffix(end)
        name, number = f"<|{base}|>", 1
        while name in names.values():
            number += 1
            name = f"<|{base}_{number}|>"
        names[one] = name
    return names


def byte_tokenizer(ids: Mapping[int, str], config: Mapping[str, Any], longest: int | None) -> dict[str, str]:
    """File -> text of a tokenizer for transformers. `ids`: special tokens and the config key that names each; `config`:
    the table with bos, eos and pad."""
    names = special_names(ids)
    added = [{"id": one, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for one, name in names.items()]  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    whole: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {text: byte for byte, text in enumerate(byte_characters())}, "merges": []},
    }  # fmt: skip
    about: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
                             "model_max_length": longest or 1 << 20, "chat_template": _TEMPLATE}
    for role in ("bos", "eos", "pad"):
        found = config.get(f"{role}_token_id")
        first = found[0] if isinstance(found, list) and found else found
        if first in names:
            about[f"{role}_token"] = names[first]
    about.setdefault("pad_token", about.get("eos_token"))
    return {"tokenizer.json": json.dumps(whole, indent=1), "tokenizer_config.json": json.dumps(about, indent=2)}
