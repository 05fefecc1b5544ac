"""Predictions for tables of training steps: what a row says, which model it is about, and steps that were measured."""

import csv

import pytest
from tests.support.config_release import LLAMA, release

from dayzero.data.stacks import stack
from dayzero.errors import NotPossible, UsageError
from dayzero.schema import Layout
from dayzero.score import score
from dayzero.score_setup import stated_facts, stated_recompute, stated_setup, stated_zero
from dayzero.score_train import (
    COLUMNS,
    NEEDED,
    Trainable,
    far,
    peak,
    point,
    predict_training,
    squashed,
)

# VIA-Research/vTrain, data/ground_truth_multi.csv: 14.9155 s
VTRAIN = {"source": "vTrain", "model": "GPT h8192 L48 a64", "gpu": "A100", "num_gpus": "512", "tp": "8", "pp": "2",
          "vp": "", "cp": "1", "ep": "", "dp": "32.0", "mbs": "4.0", "gbs": "1536.0", "seq": "2048.0",
          "precision": "FP16", "notes": "measured; 1F1B; full recompute"}
# arXiv:2205.05198, table 5: 18.13 s with full recomputation, 13.75 s with selective and sequence parallel
PAPER = VTRAIN | {"model": "gpt3-175B", "num_gpus": "64", "pp": "8", "vp": "3", "dp": "1", "mbs": "1", "gbs": "64",
                  "precision": "FP16/BF16"}
GPT_OSS = {  # gpt-oss-120b
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 36, "vocab_size": 201088,
    "num_local_experts": 128, "num_experts_per_tok": 4, "experts_per_token": 4, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "rope_theta": 150000, "hidden_act": "silu", "swiglu_limit": 7.0,
    "tie_word_embeddings": False, "attention_bias": True,
}  # fmt: skip


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


@pytest.mark.parametrize(("devices", "cp", "dp", "batch", "sequence", "tflops"), [
    (8192, 1, 64, 2048, 8192, 430), (16384, 1, 128, 2048, 8192, 400), (16384, 16, 8, 128, 131072, 380)])
def test_a_model_of_another_maker_that_nothing_was_fitted_to(folder, devices, cp, dp, batch, sequence, tflops):
    # arXiv:2407.21783, table 4: Llama 3 405B, tp=8 pp=16, how far interleaved is not said; with cp=16 keys and values
    # are gathered before attention, which hides nothing
    release(folder / "meta-llama__Llama-3.1-405B", LLAMA | {
        "hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128, "num_hidden_layers": 126})
    row = VTRAIN | {"model": "Llama-3.1-405B", "gpu": "H100", "num_gpus": str(devices), "tp": "8", "pp": "16",
                    "mbs": "1", "cp": str(cp), "dp": str(dp), "gbs": str(batch), "seq": str(sequence),
                    "precision": "BF16", "notes": ""}
    plain, interleaved = predict_training([row, row | {"vp": "8"}], [folder])
    assert 0.7 * tflops < plain.tflops < 1.05 * tflops < interleaved.tflops < 1.35 * tflops
    for one in (plain, interleaved):
        assert one.low < one.step * one.tflops / tflops < one.high


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
    ("recompute=none", "none"), ("measured", "none"), ("torchtitan; selective AC", "products")])
def test_recomputation_in_words(text, what):
    assert stated_recompute(text, stack(text)) == what


@pytest.mark.parametrize(("text", "old", "pp", "zero"), [
    ("FSDP=64", False, 1, 3), ("FSDP=0", False, 1, 1), ("FSDP2", False, 1, 3), ("ZeRO-1 DP", True, 1, 1),
    ("", True, 1, 0), ("", False, 1, 1), ("torchtitan 2D", False, 1, 3), ("torchtitan 3D", False, 8, 1)])
def test_what_replicas_share_in_words(text, old, pp, zero):
    assert stated_zero(text, old, Layout(pp=pp), stack(text)) == zero


def test_a_stack_that_cuts_the_local_batch_into_stages():
    # pytorch/torchtitan: a local batch of 32 sequences on 8 stages makes 8 micro-batches
    row = VTRAIN | {"source": "pytorch/torchtitan x", "pp": "8", "dp": "8", "mbs": "32", "gbs": "256",
                    "precision": "FP8"}
    setup = stated_setup(row)
    assert (setup.micro_batch, setup.micro_batches, setup.gradient_bytes, setup.logit_bytes) == (4, 8, 4, 14)


def test_operations_are_counted_as_the_software_did(folder):
    # NVIDIA-NeMo/Megatron-Bridge performance summaries, GPT OSS 120B, sequences of 4096: 523 TFLOPS at 19,200 tokens/s
    # in 26.04, 1077 at 33,024 in 26.08
    row = VTRAIN | {"model": "gpt-oss-120b", "gpu": "GB300", "tp": "1", "pp": "1", "ep": "64", "dp": "64", "mbs": "4",
                    "gbs": "1280", "seq": "4096", "precision": "BF16", "notes": "", "num_gpus": "64"}
    release(folder / "openai__gpt-oss-120b", GPT_OSS)
    models = Trainable([folder])
    for date, tflops, rate in (("26.04.01", 523, 19_200), ("26.08", 1077, 33_024)):
        one = point(0, row | {"source": f"NVIDIA-NeMo/Megatron-Bridge x [{date} NeMo]"}, models)
        assert one.flops() == pytest.approx(tflops * 1e12 / rate, rel=0.01)


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
    row = {"source": "pytorch/torchtitan", "model": "Llama-3.1-8B", "gpu": gpu, "num_gpus": "128", "tp": "1",
           "pp": "1", "ep": "", "dp": "128", "quant": "BF16",
           "notes": "mbs=2 gbs=256 seq=8192 cp=1 vp=; FSDP; selective AC; FSDP2"}
    room = peak(row, Trainable([folder]))
    assert room.peak == pytest.approx(64.5, rel=0.08) and room.fits is fits
    assert room.least < room.peak < room.most
    tight = peak(row | {"gpu_mem_gib": str(room.peak)}, Trainable([folder]))
    assert tight.fits is None and f"{room.least:.0f} to {room.most:.0f} GiB" in tight.reason


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
