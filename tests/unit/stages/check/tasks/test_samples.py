"""Files of evaluations: our own, and what lm-eval 0.4 writes with --log_samples."""

import json
import os
from pathlib import Path

import pytest

from dayzero.errors import StoreError, UsageError
from dayzero.schema import to_json
from dayzero.schema.evaluation import Evaluation, TaskScores
from dayzero.stages.check.tasks import compare_scores, read_evaluation, stated


def sample(number: int, correct: float) -> str:
    return json.dumps({"doc_id": number, "doc_hash": f"h{number}", "filter": "none", "metrics": ["acc", "perplexity"],
                       "acc": correct, "perplexity": 3.5 + number, "target": "1", "arguments": {}})


def folder(place: Path, right: list[float]) -> Path:
    place.mkdir()
    lines = [sample(number, each) for number, each in enumerate(right)]
    (place / "samples_arc_easy_2026-01-02T03-04-05.678.jsonl").write_text("\n".join(lines) + "\n")
    (place / "results_2026-01-02T03-04-05.678.json").write_text(json.dumps(
        {"model_name": "m", "model_source": "local", "higher_is_better": {"arc_easy": {"acc": True}}}))
    return place


def test_two_runs_of_lm_eval_are_paired_by_document(tmp_path: Path) -> None:
    first = read_evaluation(folder(tmp_path / "a", [1.0, 0.0] * 100))
    second = read_evaluation(folder(tmp_path / "b", [0.0, 0.0] * 100))
    assert first.name == "m" and {(each.task, each.metric, each.scale, each.better) for each in first.scores} == {
        ("arc_easy", "acc", "share", "higher"), ("arc_easy", "perplexity", "number", "lower")}
    outcomes = {each.metric: (each.outcome, each.items) for each in compare_scores(first, second)}
    assert outcomes == {"acc": ("fail", 200), "perplexity": ("pass", 200)}


def test_own_files_come_back(tmp_path: Path) -> None:
    scores = TaskScores(task="t", metric="m", scale="number", better="lower", items={"a": 1.5}, count=1)
    made = Evaluation(name="n", engine="e", scores=(scores,))
    (tmp_path / "e.json").write_bytes(to_json(made))
    assert read_evaluation(tmp_path / "e.json") == made


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"metrics": 3}\nno', "\x00"])
def test_what_is_none_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(StoreError):
        read_evaluation(tmp_path / "x.json")
    (tmp_path / "samples_x.jsonl").write_text(content)
    with pytest.raises(StoreError):
        read_evaluation(tmp_path / "samples_x.jsonl")
    with pytest.raises(StoreError):
        read_evaluation(tmp_path / "gone.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="not a regular file"):
        read_evaluation(tmp_path / "pipe")


def test_counts_are_stated_and_wrong_ones_told() -> None:
    found = stated(" 13/50")
    assert (found.scores[0].right, found.scores[0].count) == (13, 50)
    for text in ("13/", "14/13", "-1/5", "0/0"):
        with pytest.raises(UsageError, match="not a score"):
            stated(text)
    with pytest.raises(StoreError, match="there is no"):
        stated("13")
