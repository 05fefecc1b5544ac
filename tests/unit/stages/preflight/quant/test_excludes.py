"""Lists of excluded modules and what they are matched against."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.support import quantised, tiny_release
from tests.support.plan_models import target

from dayzero.schema import Finding
from dayzero.schema.target import EngineRequest
from dayzero.stages.preflight import preflight
from dayzero.stages.read import read

LAYERS = range(quantised.LAYERS)
RUNTIME = [f"model.layers.{layer}.{module}" for layer in LAYERS for module in (
    "self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")]


def check(folder: Path, excluded: list[str], *, tensors: tiny_release.Tensors | None = None, partial: bool = False,
          key: str = "modules_to_not_convert", more: dict[str, object] | None = None, **facts: object) -> list[Finding]:
    config = quantised.config({**quantised.FP8, key: excluded}, **(more or {}))
    folder = folder / "release"
    if tensors is None:
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
    else:
        tiny_release.write(folder, tensors, config)
    where = target(1, concurrency=1, input_tokens=16, output_tokens=16, max_batched_tokens=16)
    engine = msgspec.structs.replace(where.engine, facts=msgspec.convert(facts, EngineRequest))
    found = preflight(read(folder, cache=folder.parent / "cache"),
                      msgspec.structs.replace(where, engine=engine, partial=partial)).findings
    return [one for one in found if one.rule == "quant-exclude-unmatched"]


@pytest.mark.parametrize("entry", [
    "model.layers.0.self_attn.o_proj", "self_attn", "mlp.down_proj", "re:.*o_proj.*", "model.layers.*.mlp",
    "model.layers.1.mlp*", "*.down_proj", "layers.2", "model.layers.3", "re:model\\.layers\\.[0-3]\\.mlp"])
def test_entries_that_stand_for_modules_of_the_engine(tmp_path: Path, entry: str) -> None:
    assert check(tmp_path, [entry], modules=RUNTIME) == []


@pytest.mark.parametrize("entry", [
    "model.layers.0.mlp.gate_proj",  # fused at run time (vllm-project/vllm#50500)
    "model.layers.4.self_attn.o_proj", "model.layers.4*",  # a layer that is a draft model there (sglang#30265)
    "language_model.model.layers.0.self_attn.o_proj",  # a prefix that is stripped
    "re:.*shared_experts.*", "re:language_model\\..*", "*.experts.*", "transformer.h.0.attn", "mlp.up_proj"])
def test_entries_that_stand_for_none(tmp_path: Path, entry: str) -> None:
    found, = check(tmp_path, ["self_attn", entry], modules=[*RUNTIME, "draft.layers.0.self_attn.o_proj"])
    assert (found.severity, found.subject) == ("error", entry)


@pytest.mark.parametrize(("excluded", "told"), [
    (["re:.*mlp\\.(gate|up|down)_proj.*"], ["re:.*mlp\\.(gate|up|down)_proj.*"]),  # matches down_proj alone
    (["re:.*mlp\\.(gate|up|gate_up|down)_proj.*"], []), (["mlp"], []), (["self_attn.*"], []),
    (["re:.*self_attn\\.(q|k|v|o)_proj"], ["re:.*self_attn\\.(q|k|v|o)_proj"])])
def test_fused_modules_that_a_list_of_their_parts_misses(tmp_path: Path, excluded: list[str], told: list[str]) -> None:
    assert [one.subject for one in check(tmp_path, excluded, key="ignore", modules=RUNTIME)] == told


def test_a_list_of_one_layer_says_nothing_of_others_nor_of_ends(tmp_path: Path) -> None:
    first = [name for name in RUNTIME if ".0." in name]
    excluded = ["lm_head", "re:.*lm_head.*", "re:.*vision_tower.*", "model.embed_tokens",
                *(f"model.layers.{layer}.self_attn.o_proj" for layer in LAYERS)]
    assert check(tmp_path, excluded, modules=first) == []
    found = check(tmp_path, ["visual"], modules=[*first, "vision_tower.blocks.0.attn.qkv"])
    assert [one.subject for one in found] == ["visual"]


def test_norms_do_not_matter(tmp_path: Path) -> None:
    tensors = quantised.tensors("fp8-block")
    assert check(tmp_path, ["model.layers.0.input_layernorm"], tensors=tensors, modules=RUNTIME) == []


def test_against_the_files(tmp_path: Path) -> None:
    tensors = quantised.tensors("fp8-block", {"o_proj": "bf16"})
    excluded = ["model.layers.0.input_layernorm", "self_attn.o_proj", "lm_head", "model.embed_tokens", "re:.*o_proj"]
    assert check(tmp_path, excluded, tensors=tensors) == []
    found = check(tmp_path, [*excluded, "model.layers.0.attn.o_proj", "re:.*shared.*", "mlp.gate"], tensors=tensors)
    assert [(one.severity, one.subject) for one in found] == [
        ("error", "model.layers.0.attn.o_proj"), ("info", "re:.*shared.*"), ("info", "mlp.gate")]
    wrong = ["model.layers.0.attn.o_proj"]
    assert check(tmp_path, wrong, tensors=tensors, partial=True) == []


def test_ends_and_towers_and_prediction_layers_that_a_release_does_without(tmp_path: Path) -> None:
    excluded = ["visual.merger", "re:vision_tower.*", "model.layers.4*", "model.layers.4.eh_proj", "mtp.fc", "lm_head"]
    assert check(tmp_path, excluded, tensors=quantised.tensors("fp8-block")) == []


def test_experts_are_looked_at_one_for_all(tmp_path: Path) -> None:
    tensors = quantised.tensors("fp8-block")
    for expert in range(3):
        tensors |= quantised.stored(f"model.layers.1.mlp.experts.{expert}.up_proj", (128, 256), "fp8-block")
    assert check(tmp_path, ["model.layers.1.mlp.experts.2.up_proj"], tensors=tensors) == []


@pytest.mark.parametrize("key", ["ignore", "ignored_layers", "exclude_modules", "exclude", "llm_int8_skip_modules"])
def test_every_spelling_of_the_list(tmp_path: Path, key: str) -> None:
    assert [one.subject for one in check(tmp_path, ["mlp.up_proj"], key=key, modules=RUNTIME)] == ["mlp.up_proj"]


def test_expressions_that_are_none_or_never_end(tmp_path: Path) -> None:
    assert [one.subject for one in check(tmp_path, ["re:(["])] == ["re:(["]
    slow = check(tmp_path, ["re:(x+x+)+y"], tensors=quantised.tensors("fp8-block") | {
        "x" * 60 + ".weight": ((1, 1), "BF16")})
    assert {one.severity for one in slow} <= {"info", "error"}
    assert check(tmp_path, []) == check(tmp_path, [], modules=RUNTIME) == []
