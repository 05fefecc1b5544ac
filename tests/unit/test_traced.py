"""Graphs for whoever asks: from the cache, from a saved trace, or traced."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.graphs import layered_graph

from dayzero import traced as module
from dayzero.errors import UsageError
from dayzero.schema import OpGraph, to_json
from dayzero.schema.store import RunDirectory
from dayzero.stages.trace import to_contract
from dayzero.traced import other_of, saved_or_traced, traced

GRAPH = layered_graph(operations=True)


@pytest.fixture
def release(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100}))
    return str(tmp_path / "model")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Traces are counted and not made."""
    made: list[dict[str, Any]] = []

    def trace(release: object, *, progress: object, **options: Any) -> OpGraph:
        made.append(options)
        return GRAPH

    for name in ("trace", "graph_of"):
        monkeypatch.setattr(f"dayzero.stages.trace.{name}", trace, raising=False)
    return made


def test_the_second_time_nothing_is_traced(release: str, calls: list[dict[str, Any]], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert traced(release, cache=cache, tokens=9) == traced(release, cache=cache, tokens=9) == GRAPH
    assert calls == [{"tokens": 9}]
    traced(release, cache=cache, tokens=8)
    traced(release, cache=cache, tokens=9, again=True)
    Path(release, "modeling_new.py").write_text("")
    traced(release, cache=cache, tokens=9)
    assert [call["tokens"] for call in calls] == [9, 8, 9, 9]


def test_the_declared_library_is_another_trace(release: str, calls: list[dict[str, Any]], tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, Path]] = []

    def interpreter(config: dict[str, Any], cache: Path, progress: object) -> Path:
        asked.append((config["model_type"], cache))
        return Path("/another/python")

    monkeypatch.setattr(module, "interpreter", interpreter)
    cache = tmp_path / "cache"
    traced(release, cache=cache)
    for _ in range(2):
        traced(release, cache=cache, env="declared")
    assert calls == [{}, {"python": Path("/another/python")}] and asked == [("llama", cache)]


def test_a_hit_needs_no_torch(release: str, tmp_path: Path, calls: list[dict[str, Any]]) -> None:
    cache = tmp_path / "cache"
    traced(release, cache=cache)
    code = (f"import sys; from pathlib import Path; from dayzero.traced import traced;"
            f"traced({release!r}, cache=Path({str(cache)!r}));"
            "print('torch' in sys.modules, 'transformers' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_saved_traces(tmp_path: Path) -> None:
    (tmp_path / "saved.json").write_bytes(to_json(to_contract(GRAPH)))
    assert saved_or_traced(str(tmp_path / "saved.json")) == GRAPH
    RunDirectory(tmp_path, "1").save(3, "trace", data=GRAPH, inputs={}, seconds=1.0)
    assert saved_or_traced(str(tmp_path / "3-trace.json")) == GRAPH


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"missing": [{}]}', "\xff"])
def test_other_files_are_no_traces(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(UsageError, match=r"no (saved )?trace"):
        saved_or_traced(str(path))


def test_a_saved_trace_is_known_by_its_content(release: str, tmp_path: Path) -> None:
    for name in ("saved.out", "saved"):
        (tmp_path / name).write_bytes(b"\n " + to_json(to_contract(GRAPH)))
        assert saved_or_traced(str(tmp_path / name)) == other_of(str(tmp_path / name)) == GRAPH
    assert other_of(release) is None
    (tmp_path / "card.toml").write_text("[card]\n")
    assert not module.is_saved(str(tmp_path / "card.toml"))
    (tmp_path / "notes.txt").write_text("no trace")
    with pytest.raises(UsageError, match="no saved trace") as caught:
        other_of(str(tmp_path / "notes.txt"))
    assert "--json" in caught.value.hint and "release folder" in caught.value.hint


def test_options_of_any_kind_can_be_a_key(release: str, calls: list[dict[str, Any]], tmp_path: Path) -> None:
    class Noun(msgspec.Struct):
        seconds: float = 1.0

    traced(release, cache=tmp_path, trust=Noun())
    traced(release, cache=tmp_path, trust=Noun())
    traced(release, cache=tmp_path, trust=Noun(seconds=2.0))
    assert len(calls) == 2
    assert module.is_saved(str(tmp_path)) is False
