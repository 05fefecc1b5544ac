"""Predictions for tables of training steps: what a row says, which model it is about, and steps that were measured."""

import csv

import pytest
from tests.support.config_release import LLAMA, release

from dayzero.errors import NotPossible, UsageError
from dayzero.score import score
from dayzero.score_train import (
    COLUMNS,
    NEEDED,
    Trainable,
    far,
    peak,
    point,
    predict_training,
    squashed,
    stated_facts,
    stated_recompute,
    stated_setup,
    stated_zero,
)

# VIA-Research/vTrain, data/ground_truth_multi.csv: 14.9155 s
VTRAIN = {"source": "vTrain", "model": "GPT h8192 L48 a64", "gpu": "A100", "num_gpus": "512", "tp": "8", "pp": "2",
          "vp": "", "cp": "1", "ep": "", "dp": "32.0", "mbs": "4.0", "gbs": "1536.0", "seq": "2048.0",
          "precision": "FP16", "notes": "measured; 1F1B; full recompute"}
# arXiv:2205.05198, table 5: 18.13 s with full recomputation, 13.75 s with selective and sequence parallel
PAPER = VTRAIN | {"model": "gpt3-175B", "num_gpus": "64", "pp": "8", "vp": "3", "dp": "1", "mbs": "1", "gbs": "64",
                  "precision": "FP16/BF16"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("releases")
    release(root / "meta-llama__Meta-Llama-3.1-8B", LLAMA)
    return root


@pytest.mark.parametrize(("changes", "measured"), [
    ({}, 18.13), ({"notes": "recompute=attn_only; sequence parallel + selective recompute"}, 13.75)])
def test_steps_of_the_sequence_parallel_paper(folder, changes, measured):
    row = PAPER | {"notes": "recompute=full; full recompute"} | changes
    (one,) = predict_training([row], [folder])
    assert one.step == pytest.approx(measured, rel=0.06) and one.low < measured < one.high
    assert one.reason == "" and one.fits


@pytest.mark.parametrize(("changes", "measured"), [  # the same, 22B, 530B and 1T: nothing was fitted to them
    ({"model": "megatron-22B", "pp": "1", "vp": "1", "num_gpus": "8", "mbs": "4", "gbs": "4"}, 1.42),
    ({"model": "turing-530B", "pp": "35", "num_gpus": "280", "gbs": "280"}, 49.05),
    ({"model": "megatron-1T", "pp": "64", "vp": "1", "num_gpus": "512", "gbs": "512"}, 94.42)])
def test_sizes_that_nothing_was_fitted_to(folder, changes, measured):
    (one,) = predict_training([PAPER | {"notes": "recompute=full"} | changes], [folder])
    assert one.step == pytest.approx(measured, rel=0.1)


def test_a_model_known_by_its_sizes_alone(folder):
    (one,) = predict_training([VTRAIN], [folder])
    assert one.step == pytest.approx(14.9, rel=0.2)
    assert one.rate == pytest.approx(1536 * 2048 / one.step / 512)


@pytest.mark.parametrize(("text", "facts"), [
    ("GPT h1024 L24 a16", {"hidden": 1024, "layers": 24, "heads": 16}),
    ("hidden=2048, layers=12, heads=16, vocab=50304", {"hidden": 2048, "layers": 12, "heads": 16, "vocab": 50304}),
    ("hidden_size: 64", {"hidden": 64}), ("H100 A100", {})])
def test_sizes_in_words(text, facts):
    assert stated_facts(text) == facts


@pytest.mark.parametrize(("name", "found"), [
    ("LLAMA3_8B", "Meta-Llama-3.1-8B"), ("Llama-3.1-8B", "Meta-Llama-3.1-8B"),
    ("DeepSeekV3 (w/o MTP)", "DeepSeek-V3"),
    ("GPT OSS 120B", "gpt-oss-120b"), ("Kimi_K2", "Kimi-K2-Instruct"), ("Qwen3_30B_a3B", "Qwen3-30B-A3B"),
    ("LLAMA3_70B", None), ("Qwen3_3B", None), ("Nemotron_3_5_Lightning", "Nemotron-3.5-Lightning")])
def test_names_find_the_nearest_release(name, found):
    known = ("Meta-Llama-3.1-8B", "DeepSeek-V3", "DeepSeek-V3.1", "gpt-oss-120b", "gpt-oss-20b", "Kimi-K2-Instruct",
             "Kimi-K2.5", "Nemotron-3.5-Lightning", "Qwen3-30B-A3B", "Qwen3-30B-A3B-FP8", "Qwen3-235B-A22B")
    told = {release: far(name, squashed(release)) for release in known}
    near = {release: distance for release, distance in told.items() if distance is not None}
    assert (min(near, key=near.__getitem__) if near else None) == found


@pytest.mark.parametrize(("text", "what"), [
    ("recompute=full; x", "full"), ("recompute=attn_only", "selective"), ("T1 FSDP; selective AC", "selective"),
    ("T2 full AC", "full"), ("recompute=mla_up_proj+mlp", "selective"),
    ("recompute=none", "none"), ("measured", "none")])
def test_recomputation_in_words(text, what):
    assert stated_recompute(text) == what


@pytest.mark.parametrize(("text", "old", "zero"), [
    ("FSDP=64", False, 3), ("FSDP=0", False, 1), ("FSDP2", False, 3), ("ZeRO-1 DP", True, 1), ("", True, 0),
    ("", False, 1)])
def test_what_replicas_share_in_words(text, old, zero):
    assert stated_zero(text, old) == zero


def test_a_row_is_read():
    row = PAPER | {"cp": "2", "dp": "4", "notes": "DualPipe; LoRA", "precision": "FP8-CS", "source": "x [26.02 y]"}
    setup = stated_setup(row | {"gbs": "64"})
    assert (setup.layout.dp, setup.layout.cp, setup.replicas, setup.virtual) == (8, 2, 4, 3)
    assert (setup.scheme, setup.schedule, setup.frozen, setup.grouped) == ("fp8", "zero-bubble", True, False)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"model": "Nobody-7B"}, "no release of Nobody-7B"), ({"gpu": "none"}, "device is not known"),
    ({"precision": ""}, "precision is not stated"), ({"seq": ""}, "seq is not stated"),
    ({"tp": "1 (2)"}, "tp is not a number"), ({"gbs": "100"}, "cannot share a batch")])
def test_rows_that_say_too_little(folder, changes, reason):
    (one,) = predict_training([VTRAIN | changes], [folder])
    assert one.step is None and reason in one.reason and len(one.cells()) == len(COLUMNS)


@pytest.mark.parametrize(("gpu", "fits"), [("H100", True), ("A100", True), ("RTX4090", False)])
def test_a_measured_peak(folder, gpu, fits):
    # pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: 62.0 GiB compiled and 67.0 eager, on 128 devices
    row = {"source": "x", "model": "Llama-3.1-8B", "gpu": gpu, "num_gpus": "128", "tp": "1", "pp": "1", "ep": "",
           "dp": "128", "quant": "BF16", "notes": "mbs=2 gbs=256 seq=8192 cp=1 vp=; FSDP; selective AC; FSDP2"}
    size, told = peak(row, Trainable([folder]))
    assert size == pytest.approx(64.5, rel=0.08) and told is fits


def test_a_missing_fact_is_an_error_of_its_own(folder):
    with pytest.raises(NotPossible):
        point(0, VTRAIN | {"mbs": ""}, Trainable([folder]))
    with pytest.raises(UsageError):
        Trainable([folder / "none"])


def test_a_table_is_scored(tmp_path, folder):
    table, out = tmp_path / "points.csv", tmp_path / "out.csv"
    rows = [VTRAIN, VTRAIN | {"model": "LLAMA3_8B", "precision": "BF16", "notes": "", "tp": "1", "pp": "1", "dp": "8",
                              "num_gpus": "8", "gbs": "64", "mbs": "1", "gpu": "H100"}]
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(VTRAIN))
        writer.writeheader()
        writer.writerows(rows)
    made, _ = score(table, [folder], out, "train")
    with out.open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["row"] for row in written] == ["0", "1"] and tuple(written[0]) == COLUMNS
    assert float(written[1]["step_time_s"]) == pytest.approx(made[1].step, rel=1e-4)
    table.write_text("model\nx\n")
    with pytest.raises(UsageError, match=NEEDED[0]):
        score(table, [folder], out, "train")
