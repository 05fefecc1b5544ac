"""A fault in one setting of a run: that setting is blamed, and no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import tiny
from torch._dynamo.backends.registry import register_backend
from torch.nn import functional

from dayzero.errors import NotPossible, UsageError
from dayzero.runtime.pages.saved import Saved, Shelf
from dayzero.runtime.substitution.settings import Plain, recorded
from dayzero.stages.check.locate import locate
from dayzero.stages.check.locate.bisect import Bisected, bisect

TOKENS = [list(range(40, 60)), list(range(210, 223))]


@pytest.fixture(scope="module")
def small(tmp_path_factory: Any) -> Path:
    return tiny.dense(tmp_path_factory.mktemp("small") / "model", num_hidden_layers=2)


def found(root: Path, **varied: str) -> Bisected:
    return bisect(tiny.release(root), varied, tokens=TOKENS)


@pytest.mark.parametrize("tier", ["paged", "host", "disk"])
def test_a_cache_that_comes_back_as_it_went(small: Path, tier: str) -> None:
    result = found(small, cache=tier)
    assert not result.blamed and not result.not_run and not result.plain_is_wrong


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_cache_that_comes_back_wrong(small: Path, tier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                       ) -> None:
    """Its first token's is that of the last one, in one layer; the digest was right when it was looked at."""
    right = Shelf.take

    def wrong(self: Shelf, sequence: int) -> Saved:
        saved = right(self, sequence)
        for key, part in saved.parts.items():
            if key[0] == 1:
                part[0] = part[-1]
        return saved
    monkeypatch.setattr(Shelf, "take", wrong)
    if tier == "disk":  # without a search for causes
        recorded(Plain(small, "f32"), {"cache": tier}, TOKENS, tmp_path / "dump")
        first, *_ = locate(small, tmp_path / "dump", causes=False).guilty
        assert first.module == "model.layers.1.self_attn"
        return
    result = found(small, batch="2", cache=tier)
    assert result.blamed == {"cache": tier}
    assert result.location is not None and result.location.first is not None
    assert result.location.first.module == "model.layers.1.self_attn"


def test_every_sequence_leaves_and_comes_back_after_every_step(small: Path, tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    right, seen = Shelf.put, list[int]()

    def noted(self: Shelf, sequence: int, saved: Saved, tier: str) -> None:
        seen.append(saved.tokens)
        right(self, sequence, saved, tier)
    monkeypatch.setattr(Shelf, "put", noted)
    recorded(Plain(small, "f32"), {"cache": "host", "decode": "3"}, TOKENS, tmp_path / "dump")
    assert sorted(seen) == [10, 11, 12, 17, 18, 19]  # after the prompt, and after all but the last token


def _changed(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target is functional.silu:
            node.target, node.kwargs = functional.gelu, {}
    graph.recompile()
    return graph.forward


@pytest.mark.slow
def test_a_compiler_that_changes_one_operator(tmp_path: Path) -> None:
    register_backend(_changed, name="changes_silu")
    result = found(tiny.dense(tmp_path / "model", num_hidden_layers=1), compile="changes_silu")
    assert result.blamed == {"compile": "changes_silu"}
    assert result.location is not None and result.location.first is not None
    assert result.location.first.module.startswith("model.layers.0.mlp")


def test_a_compiler_that_compiles_nothing_has_not_passed(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    result = found(small, compile="eager")
    assert result.not_run == {"compile": "eager"} and "compiled nothing" in result.tried[-1].reason


@pytest.mark.slow
def test_two_settings_that_are_wrong_are_both_blamed(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    right, took = ALL_ATTENTION_FUNCTIONS["sdpa"], Shelf.take

    def scaled(module: Any, *args: Any, **named: Any) -> Any:
        return right(module, *args, **{**named, "scaling": named["scaling"] * 1.5})

    def zeros(self: Shelf, sequence: int) -> Saved:
        saved = took(self, sequence)
        saved.parts = {key: torch.zeros_like(part) for key, part in saved.parts.items()}
        return saved
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", scaled)
    monkeypatch.setattr(Shelf, "take", zeros)
    result = found(small, cache="host", chunk="7", attention="sdpa")
    assert result.blamed == {"cache": "host", "attention": "sdpa"} and result.location is not None


def test_values_that_there_are_not(small: Path) -> None:
    with pytest.raises(UsageError, match="cache=tape"):
        found(small, cache="tape")
    with pytest.raises(NotPossible, match="does not run"):
        recorded(Plain(small, "f32"), {"compile": "no_such_backend"}, TOKENS, small / "dump")
