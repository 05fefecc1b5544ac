"""Patterns of a config: what they match, and that none of them costs more than it may."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.stages.read import patterns, read
from dayzero.stages.read.patterns import Patterns

# Each way to choose among the alternatives is tried before the match fails.
ENDLESS = r"re:(?:[a-z_.0-9]|[a-z]|[a-z0-9.])+[!?]"
MODULE = "model.layers.3.self_attn.q_proj"
CONFIG = {"model_type": "some", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
          "vocab_size": 100, "intermediate_size": 1024, "tie_word_embeddings": False}  # fmt: skip


@pytest.mark.parametrize(("entry", "matches"), [
    ("re:model\\.layers\\.3", True), ("re:layers", False), ("re:.*q_proj$", True), ("re:^(?!.*mlp).*$", True),
    ("model.layers.3*", True), ("*q_proj", True), ("*.self_attn", True), ("thinker.model.layers.3.self*", True),
    ("layers.4*", False), ("*k_proj", False),
])  # fmt: skip
def test_what_matches(entry: str, matches: bool) -> None:
    problems: list[str] = []
    assert Patterns([entry], problems).match(MODULE) is matches
    assert problems == []


@pytest.mark.parametrize("entry", ["re:(((", "re:*", "re:(?R)", "re:" + "(" * 900 + ")" * 900, "*" * 3000])
def test_what_is_no_pattern_is_named(entry: str) -> None:
    problems: list[str] = []
    assert not Patterns([entry], problems).match(MODULE)
    assert len(problems) == 1 and "not applied" in problems[0] and len(problems[0]) < 200


def test_a_pattern_without_end_is_left_out_and_named() -> None:
    problems: list[str] = []
    chosen = Patterns([ENDLESS, "*q_proj"], problems)
    started = time.perf_counter()
    assert chosen.match(MODULE * 3)
    for _ in range(50):
        chosen.match(MODULE.replace("q", "k") * 3)
    assert time.perf_counter() - started < 20 * patterns.MATCH_SECONDS
    assert len(problems) == 1 and ENDLESS[:20] in problems[0] and "takes too long" in problems[0]


def test_all_patterns_together_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "ALL_SECONDS", 0.3)
    problems: list[str] = []
    started = time.perf_counter()
    chosen = Patterns([f"{ENDLESS}{number}" for number in range(100_000)], problems)
    chosen.match(MODULE * 3)
    assert time.perf_counter() - started < 5
    assert "patterns take more than 0.3 s" in problems[-1] and not chosen.match("x!0")


def test_the_model_says_which_patterns_were_not_applied(tmp_path: Path) -> None:
    stated = {"quant_method": "fp8", "ignored_layers": ["re:(((", ENDLESS, "*.q_proj"]}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": stated}))
    model = read(tmp_path, metadata_only=True).model
    assert any("'re:((('" in text for text in model.unknowns)
    plain = {family.pattern for family in model.families if family.scheme == "bf16" and len(family.shape) == 2}
    assert any("q_proj" in pattern for pattern in plain) and not any("up_proj" in pattern for pattern in plain)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab.*?+|()[]{}^$\\<>!=:PiRx1,-#&~", max_size=20), st.booleans())
def test_any_text_is_harmless(text: str, is_regex: bool) -> None:
    problems: list[str] = []
    chosen = Patterns(["re:" + text if is_regex else text + "*"], problems)
    assert chosen.match("a.b.a.b") in (True, False)
    assert all(problem.isprintable() for problem in problems)
