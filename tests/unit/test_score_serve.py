"""Predictions for tables of serving points."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests.support.config_release import KIMI, LLAMA, release

from dayzero.data.precisions import precision
from dayzero.score import Models, score
from dayzero.score_serve import COLUMNS, engine_version, in_precision, predict_serving, weights_at_most_8_bits

# aiconfigurator-core 0.12, systems/silicon_sample.csv: 7.549 ms between tokens
POINT = {"source": "x", "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h100_sxm", "num_gpus": "1.0",
         "precision": "", "framework": "trtllm 1.0.0rc3", "tp": "1.0", "ep": "1.0", "dp": "", "dp_attention": "0.0",
         "isl": "1024.0", "osl": "256.0", "concurrency": "8.0", "mode": "agg", "notes": "moe_tp=1; batch_size=8"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    root = tmp_path_factory.mktemp("releases")
    release(root / "meta-llama__Meta-Llama-3.1-8B", LLAMA)
    release(root / "moonshotai__Kimi-Linear-48B-A3B-Instruct", KIMI)
    return Models([root])


# the same source: requests, milliseconds between tokens
@pytest.mark.parametrize(("change", "tpot"), [
    ({}, 7.549), ({"concurrency": "64.0", "notes": "batch_size=64"}, 15.199),
    ({"concurrency": "128.0", "notes": "batch_size=128"}, 23.088), ({"tp": "2.0"}, 4.930),
])
def test_points_that_were_measured(models: Models, change: dict[str, str], tpot: float) -> None:
    made = next(predict_serving([{**POINT, **change}], models))
    assert made.tpot and made.fits and made.reason == ""
    value, low, high = made.tpot
    assert value == pytest.approx(tpot / 1000, rel=0.2) and low < tpot / 1000 < high


def test_more_requests_take_longer_and_more_devices_less(models: Models) -> None:
    rows = [{**POINT, "concurrency": number, "notes": ""} for number in ("1", "16", "128")]
    alone, some, many = (one.tpot[0] for one in predict_serving(rows, models) if one.tpot)
    assert alone < some < many
    waits = [one.ttft[0] for one in predict_serving(rows, models) if one.ttft]
    assert waits == sorted(waits)


def test_requests_that_the_cache_has_no_room_for_wait_for_whole_answers(models: Models) -> None:
    # 128 KiB a token: 80 GB less 16 GB of weights hold fewer than 1024 sequences of 8,000 tokens
    crowded = {**POINT, "isl": "7000", "osl": "1000", "concurrency": "1024", "notes": ""}
    roomy = {**crowded, "concurrency": "32"}
    late, soon = predict_serving([crowded, roomy], models)
    assert late.ttft and soon.ttft and late.tpot and soon.tpot
    assert late.ttft[0] > 10 * soon.ttft[0] and late.ttft[0] > 1000 * soon.tpot[0]


def test_a_device_that_is_not_stated_makes_a_wide_interval(models: Models) -> None:
    one = next(predict_serving([{**POINT, "gpu": ""}], models))
    known = next(predict_serving([POINT], models))
    assert one.tpot and known.tpot and one.tpot[1] < known.tpot[1] and one.tpot[2] > known.tpot[2]
    assert "the device is not stated" in one.reason


def test_a_device_and_an_engine_that_were_never_measured(models: Models) -> None:
    known, other = predict_serving([POINT, {**POINT, "gpu": "MI300X", "framework": "something 1"}], models)
    assert known.tpot and other.tpot
    assert other.tpot[2] / other.tpot[1] > 1.5


@pytest.mark.parametrize(("change", "reason"), [
    ({"model": "Nobody-7B"}, "no release of Nobody-7B"), ({"gpu": "abacus"}, "no device is known as abacus"),
    ({"tp": "", "ep": "", "num_gpus": ""}, "layout is not stated"), ({"isl": "long"}, "isl is not a sensible number"),
])
def test_rows_without_a_prediction_say_why(models: Models, change: dict[str, str], reason: str) -> None:
    one = next(predict_serving([{**POINT, **change}], models))
    assert one.tpot is one.ttft is one.fits is None and reason in one.reason


def test_what_is_not_stated_is_said(models: Models) -> None:
    one = next(predict_serving([{**POINT, "osl": "", "concurrency": ""}], models))
    assert one.tpot and one.reason == "not stated, taken from the default workload: osl"  # the batch of a worker is


def test_pipeline_stages_hold_a_part_of_the_weights(models: Models) -> None:
    # 16 GB of weights and 24 GB of memory: two stages leave room for more than twice the requests
    point = {**POINT, "gpu": "RTX 3090", "isl": "8000", "concurrency": "32", "notes": ""}
    rows = [{**point, "pp": stages} for stages in ("1", "2")]
    one, two = predict_serving(rows, models)
    assert one.ttft and two.ttft and two.ttft[0] < 0.5 * one.ttft[0]
    assert two.reason == "pipeline stages are timed one after another"


def test_workers_apart_do_not_wait_for_prefills(models: Models) -> None:
    notes = "prefill_num_workers=1 prefill_tp_size=1 decode_num_workers=1 decode_tp_size=1"
    together = {**POINT, "isl": "8000", "osl": "100", "notes": ""}
    apart = {**together, "mode": "disagg", "notes": notes}
    unstated = {**apart, "notes": "prefill_tp_size=1 decode_tp_size=1"}
    one, other, third = predict_serving([together, apart, unstated], models)
    assert one.tpot and other.tpot and third.tpot and other.tpot[0] < 0.8 * one.tpot[0]
    assert third.tpot[2] / third.tpot[1] > other.tpot[2] / other.tpot[1]


def test_precisions(models: Models) -> None:
    llama, kimi = (models.model(path) for name in ("Llama-3.1-8B", "Kimi-Linear-48B-A3B-Instruct")
                   if (path := models.find(name, None)))
    four = in_precision(llama, precision("fp4"))
    assert {family.scheme for family in four.families if family.role == "attention.q"} == {"nvfp4"}
    assert weights_at_most_8_bits(four) and not weights_at_most_8_bits(llama)
    mixed = in_precision(kimi, precision("fp4"))
    assert {family.scheme for family in mixed.families if family.role.startswith("experts")} == {"nvfp4"}
    assert all(family.scheme == "bf16" for family in mixed.families if family.role == "attention.q")
    assert in_precision(llama, None) is llama


def test_options_that_notes_state_are_waited_for(models: Models) -> None:
    """A look at new requests every 21 steps: ten steps of waiting, and prompts that came meanwhile in the same pass."""
    plain, late = predict_serving([POINT, {**POINT, "notes": POINT["notes"] + "; scheduler_recv_interval=21"}], models)
    assert plain.tpot and plain.ttft and late.ttft and late.tpot == plain.tpot
    assert 10 * 0.8 * plain.tpot[0] < late.ttft[0] - plain.ttft[0] < 20 * plain.tpot[0]


def test_prompts_one_by_one_wait_longer_for_each_other(models: Models) -> None:
    many = {**POINT, "concurrency": "128.0", "isl": "256.0", "notes": "batch_size=128"}
    together, single = predict_serving([many, {**many, "notes": "batch_size=128; max_num_tokens=256"}], models)
    assert together.ttft and single.ttft and single.ttft[0] > 1.1 * together.ttft[0]


def test_a_table(tmp_path: Path, models: Models) -> None:
    points, out = tmp_path / "points.csv", tmp_path / "out.csv"
    (tmp_path / "r").mkdir()
    release(tmp_path / "r" / "meta-llama__Meta-Llama-3.1-8B", LLAMA)
    with points.open("w", newline="") as file:
        writer = csv.DictWriter(file, POINT)
        writer.writeheader()
        writer.writerows([POINT, {**POINT, "model": "Nobody-7B"}])
    made, _ = score(points, [tmp_path / "r"], out, "serve")
    with out.open(newline="") as file:
        first, second = csv.DictReader(file)
    assert len(made) == 2 and tuple(first) == COLUMNS
    assert float(first["tpot_low_ms"]) < float(first["tpot_ms"]) < float(first["tpot_high_ms"])
    assert first["fits"] == "true" and second["tpot_ms"] == "" and "Nobody-7B" in second["reason"]


@pytest.mark.parametrize(("cell", "version"), [
    ("vllm 0.12.0", "0.12.0"), ("vllm==0.12.0", "0.12.0"), ("vllm v0.12.0", "0.12.0"), ("vllm (0.12.0)", "0.12.0"),
    ("trtllm 1.2.0rc6.post3", "1.2.0rc6.post3"), ("vllm\u00a00.12.0", "0.12.0"), ("vllm", ""), ("sglang ", "")])
def test_the_version_of_a_cell(cell: str, version: str) -> None:
    assert engine_version(cell) == version
