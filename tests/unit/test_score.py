"""Predictions for tables: which release a name is about, what a row says of a launch, and what comes out."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests.support.config_release import KIMI, LLAMA, release

from dayzero.data.precisions import precision
from dayzero.errors import NotPossible, UsageError
from dayzero.score import COLUMNS, NEEDED, Models, kind_of, known_device, predict_memory, read_points, score

HEADER = ("source", "model", "gpu", "gpu_mem_gib", "tp", "pp", "ep", "dp", "quant", "gpu_memory_utilization",
          "max_model_len", "notes", "framework", "kind")
# vllm-project/vllm#10517
POINT = dict(zip(HEADER, ("x#1", "Llama-3.1-8B-Instruct", "RTX3090", "23.58", "1.0", "", "", "", "bf16", "0.9",
                          "20000.0", "1952 blocks", "vllm 2024-12", "serving"), strict=True))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    root = tmp_path_factory.mktemp("releases")
    release(root / "meta-llama__Meta-Llama-3.1-8B", LLAMA)
    release(root / "some__Meta-Llama-3.1-8B-FP8", LLAMA)
    release(root / "moonshotai__Kimi-Linear-48B-A3B-Instruct", KIMI)
    return Models([root])


@pytest.mark.parametrize(("name", "quant", "found"), [
    ("meta-llama/Meta-Llama-3.1-8B", "", "meta-llama__Meta-Llama-3.1-8B"),
    ("Meta-Llama-3.1-8B", "", "meta-llama__Meta-Llama-3.1-8B"),
    ("Llama-3.1-8B-Instruct", "bf16", "meta-llama__Meta-Llama-3.1-8B"),
    ("Llama-3.1-8B-Instruct", "fp8", "some__Meta-Llama-3.1-8B-FP8"),
    ("Llama-3.1-8B-Instruct-2508", "", "meta-llama__Meta-Llama-3.1-8B"),
    ("Kimi-Linear-48B-A3B-AWQ-4bit", "awq int4", "moonshotai__Kimi-Linear-48B-A3B-Instruct"),
    ("Llama-3.1-70B", "", None), ("Llama-3.2-8B", "", None), ("Kimi-K2", "", None),
])
def test_names_find_releases(models: Models, name: str, quant: str, found: str | None) -> None:
    path = models.find(name, precision(quant))
    assert (path and path.name) == found


@pytest.mark.parametrize(("text", "name"), [
    ("H200", "h200"), ("RTX 5090", "rtx5090"), ("RTX PRO 6000 class", "rtxpro6000"), ("GB200", "gb200"),
    ("RTX A6000", "rtxa6000"), ("H100-96GB(500W)", "h100"), ("none", None),
])
def test_names_find_devices(text: str, name: str | None) -> None:
    found = known_device(text)
    assert (found and found.name) == name


def test_a_point_that_was_measured(models: Models) -> None:
    # 14.9888 GiB and 31,232 tokens
    one = next(predict_memory([POINT], models))
    assert one.weights == pytest.approx(14.9888, rel=0.002) and one.fits is True and one.reason == ""
    assert one.tokens == pytest.approx(31_232, rel=0.03)


def test_what_does_not_fit_says_why(models: Models) -> None:
    # 23,648 tokens
    one = next(predict_memory([{**POINT, "max_model_len": "29000.0"}], models))
    assert one.fits is False and "a sequence of 29000" in one.reason


@pytest.mark.parametrize(("change", "reason"), [
    ({"model": "Nobody-7B"}, "no release of Nobody-7B"), ({"kind": "disk"}, "only memory of serving"),
    ({"notes": "experts on CPU"}, "not all weights are on the device"), ({"quant": "gguf q4"}, "not all weights"),
    ({"tp": ""}, "layout is not stated"), ({"tp": "many"}, "tp is not a number"), ({"tp": "0"}, "degrees start at 1"),
    ({"gpu_mem_gib": "inf"}, "gpu_mem_gib is not a sensible number"),
    ({"max_model_len": "-3"}, "not a sensible number"),
    ({"tp": "3", "ep": "2"}, "does not divide"),
])
def test_rows_without_a_prediction_say_why(models: Models, change: dict[str, str], reason: str) -> None:
    one = next(predict_memory([{**POINT, **change}], models))
    assert reason in one.reason and one.weights is one.tokens is one.fits is None


def test_weights_alone_where_the_device_or_the_engine_is_not_known(models: Models) -> None:
    nowhere, engineless, small = predict_memory(
        [{**POINT, "gpu": "", "gpu_mem_gib": ""}, {**POINT, "framework": "some engine"},
         {**POINT, "framework": "", "gpu": "", "gpu_mem_gib": "12"}], models)
    assert nowhere.weights == pytest.approx(14.99, rel=0.01) and nowhere.fits is None
    assert engineless.weights and engineless.fits is None
    assert small.fits is False


def test_settings_are_read_from_cells_and_notes(models: Models) -> None:
    plain = {**POINT, "model": "Kimi-Linear-48B-A3B-Instruct", "gpu": "H200", "tp": "4", "framework": "vllm 0.11.0",
             "gpu_mem_gib": "141.0", "quant": ""}
    narrow = {**plain, "quant": "bf16 (KV fp8)"}
    shared = {**plain, "notes": "TP4+DCP4"}
    step = {**plain, "notes": "mnbt 64000"}
    first, second, third, fourth = (one.tokens or 0 for one in predict_memory([plain, narrow, shared, step], models))
    assert second == pytest.approx(2 * first, rel=0.01)
    assert third == pytest.approx(4 * first, rel=0.01)
    assert 0 < fourth < first


def test_the_table_that_is_written(tmp_path: Path, models: Models) -> None:
    points = tmp_path / "points.csv"
    with points.open("w", newline="") as file:
        writer = csv.DictWriter(file, HEADER)
        writer.writeheader()
        writer.writerows([POINT, {**POINT, "model": 'A "b", c'}])
    folder = next(iter(models._paths.values())).parent
    made, _ = score(points, [folder], tmp_path / "out.csv", "memory")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS and [row["row"] for row in rows] == ["0", "1"]
    assert rows[0]["fits"] == "true" and int(rows[0]["kv_cache_tokens"]) == made[0].tokens
    assert rows[1]["reason"] == 'no release of A "b", c' and rows[1]["fits"] == ""


def test_wrong_requests(tmp_path: Path) -> None:
    with pytest.raises(NotPossible, match="points of speed are not scored"):
        score(tmp_path / "a.csv", [tmp_path], tmp_path / "b.csv", "speed")
    with pytest.raises(UsageError, match="is not a folder of releases"):
        Models([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match=r"cannot read .*a\.csv: No such file or directory$"):
        read_points(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("model,gpu\nx,y\n")
    with pytest.raises(UsageError, match="lacks the columns"):
        read_points(tmp_path / "a.csv")


def test_the_columns_say_what_a_table_is_of(tmp_path: Path) -> None:
    for kind, columns in NEEDED.items():
        (tmp_path / f"{kind}.csv").write_text(",".join(columns) + "\n" + ",".join("1" for _ in columns) + "\n")
        assert kind_of(tmp_path / f"{kind}.csv") == kind
    (tmp_path / "none.csv").write_text("model,gpu\na,b\n")
    with pytest.raises(UsageError, match="lacks the columns"):
        kind_of(tmp_path / "none.csv")
    both = sorted({column for columns in NEEDED.values() for column in columns})
    (tmp_path / "both.csv").write_text(",".join(both) + "\n" + ",".join("1" for _ in both) + "\n")
    with pytest.raises(UsageError, match="memory or"):
        kind_of(tmp_path / "both.csv")
    (tmp_path / "empty.csv").write_text(",".join(both) + "\n")
    for kind in (kind_of, read_points):
        with pytest.raises(UsageError, match="has no rows"):
            kind(tmp_path / "empty.csv")
