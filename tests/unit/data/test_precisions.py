"""Words for precisions in names and tables."""

from __future__ import annotations

import pytest

from dayzero.data.precisions import is_precision, precision, variant


@pytest.mark.parametrize(("text", "scheme"), [
    ("awq int4", "awq"), ("mxfp4 (marlin)", "mxfp4"), ("Qwen3-235B-A22B-FP8", "fp8"), ("bf16", "bf16"),
    ("nvidia/DeepSeek-V3.1-NVFP4", "nvfp4"), ("fp4", "mxfp4"), ("modelopt_fp4", "nvfp4"), ("int4", "int4"),
])
def test_words_are_found(text: str, scheme: str) -> None:
    found = precision(text)
    assert found and found.scheme == scheme


def test_parts_of_words_are_not() -> None:
    assert precision("Kimi-K2-Instruct") is None
    assert precision("xfp8x") is None
    assert is_precision("fp8") and not is_precision("8b")


def test_published_variants() -> None:
    one = variant("Meta-Llama-3.1-405B-Instruct-FP8")
    assert one and one.roles == ("mlp",) and one.kv_heads == 16
    assert variant("Llama-3.1-70B-Instruct-FP8") is None
