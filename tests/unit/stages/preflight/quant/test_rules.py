"""What the config states of quantisation against what is stored."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.support import quantised, tiny_release
from tests.support.plan_models import target

from dayzero.schema import Finding, Target
from dayzero.schema.target import EngineRequest
from dayzero.stages.preflight import preflight
from dayzero.stages.read import read

SMALL = target(1, concurrency=1, input_tokens=16, output_tokens=16, max_batched_tokens=16)
ODD = "model.layers.2.self_attn.o_proj"


def on(partial: bool = False, **facts: object) -> Target:
    """A target with those facts about the engine."""
    engine = msgspec.structs.replace(SMALL.engine, facts=msgspec.convert(facts, EngineRequest))
    return msgspec.structs.replace(SMALL, engine=engine, partial=partial)


@pytest.fixture
def check(tmp_path: Path):
    def run(rule: str, tensors: tiny_release.Tensors, config: dict[str, object],
            where: Target = SMALL) -> list[Finding]:
        folder = tiny_release.write(tmp_path / "release", tensors, config)
        found = preflight(read(folder, cache=tmp_path / "cache"), where).findings
        return [finding for finding in found if finding.rule == rule]

    return run


@pytest.mark.parametrize("form", quantised.ALL)
def test_every_format_as_it_is_stated(check, form: str) -> None:
    assert check("quant-config-vs-file", quantised.tensors(form), quantised.config(quantised.ALL[form])) == []


SCHEMES = {"fp8-block": "fp8", "fp8-rounded": "fp8", "fp8-row": "fp8", "fp8-tensor": "fp8", "mxfp8": "mxfp8",
           "mxfp4": "mxfp4", "nvfp4": "nvfp4", "int4": "w4a16", "gptq": "w4a16", "awq": "w4a16", "int8": "w8a8"}


@pytest.mark.parametrize("form", quantised.ALL)
def test_one_module_that_is_stored_plainly(check, form: str) -> None:
    # as a projection of Qwen3-30B-A3B-FP8 would be that its config excludes nowhere
    said = quantised.config(quantised.ALL[form])
    found, = check("quant-config-vs-file", quantised.tensors(form, {ODD: "bf16"}), said)
    assert (found.severity, found.subject) == ("error", f"{ODD}.weight")
    assert found.facts == {"config": SCHEMES[form], "file": "bf16"}


@pytest.mark.parametrize("form", quantised.ALL)
def test_a_quantised_release_whose_config_says_nothing(check, form: str) -> None:
    found = check("quant-config-vs-file", quantised.tensors(form), quantised.config(None))
    assert {finding.facts["file"] for finding in found} == {"packed" if form == "int4" else SCHEMES[form]}
    assert {finding.facts["config"] for finding in found} == {"bf16"}
    assert {finding.facts["count"] for finding in found} == {quantised.LAYERS}
    assert len(found) == 7  # all of a pattern are one finding


def test_a_statement_in_another_file_that_is_not_understood(check, tmp_path: Path) -> None:
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "quant_model_description.json").write_text("{}")
    assert check("quant-config-vs-file", quantised.tensors("int8"), quantised.config(None)) == []


def test_a_statement_beside_the_config(check, tmp_path: Path) -> None:
    # nvidia/Llama-3.1-70B-Instruct-FP8: config.json says nothing, hf_quant_config.json does
    (tmp_path / "release").mkdir()
    said = {"producer": {"name": "modelopt"}, "quantization": quantised.ALL["fp8-tensor"]}
    (tmp_path / "release" / "hf_quant_config.json").write_text(json.dumps(said))
    assert check("quant-config-vs-file", quantised.tensors("fp8-tensor"), quantised.config(None)) == []
    found, = check("quant-config-vs-file", quantised.tensors("fp8-tensor", {ODD: "bf16"}), quantised.config(None))
    assert found.subject == f"{ODD}.weight"


@pytest.mark.parametrize(("said", "plain"), [
    ({**quantised.FP8, "modules_to_not_convert": [ODD]}, ODD),
    ({**quantised.FP8, "ignored_layers": [ODD, "lm_head"]}, ODD),
    ({**quantised.FP8, "modules_to_not_convert": ["self_attn.o_proj"]}, "o_proj"),
    ({**quantised.ROW8, "ignore": ["lm_head", "re:.*o_proj.*"]}, "o_proj"),
    ({**quantised.ROW8, "ignore": ["re:model\\.layers\\.2\\.self_attn\\.o.*"]}, ODD),
    ({"quant_algo": "FP8", "exclude_modules": ["model.layers.2.self_attn*"]}, "layers.2.self_attn"),
    ({"quant_algo": "FP8", "exclude_modules": ["*.o_proj"]}, "o_proj"),
    ({"quant_method": "fp8", "exclude": ["*layers.2*"]}, "layers.2."),
    ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.*.self_attn"]}, "self_attn"),
])
def test_exclusions_in_every_spelling(check, said: dict[str, object], plain: str) -> None:
    form = "fp8-block" if "weight_block_size" in said else "fp8-row"
    assert check("quant-config-vs-file", quantised.tensors(form, {plain: "bf16"}), quantised.config(said)) == []
    without = {**said, **{key: [] for key, value in said.items() if isinstance(value, list) and "weight" not in key}}
    assert check("quant-config-vs-file", quantised.tensors(form, {plain: "bf16"}), quantised.config(without))


def test_what_is_excluded_and_quantised_all_the_same(check) -> None:
    said = {**quantised.FP8, "modules_to_not_convert": ["self_attn"]}
    found = check("quant-config-vs-file", quantised.tensors("fp8-block", {ODD: "fp8-block", "self_attn": "bf16"}),
                  quantised.config(said))
    assert [(one.subject, one.facts) for one in found] == [(f"{ODD}.weight", {"config": "bf16", "file": "fp8"})]


def test_the_file_decides_and_prediction_layers_do_not_count(check) -> None:
    tensors = quantised.tensors("fp8-block", {ODD: "bf16"})
    found, = check("quant-config-vs-file", tensors, quantised.config(quantised.FP8), on(quant_from="file"))
    assert found.severity == "warning"
    extra = quantised.stored("model.layers.4.eh_proj", (256, 512), "bf16") | quantised.stored(
        "model.layers.4.self_attn.o_proj", (256, 256), "bf16")
    said = quantised.config(quantised.FP8, num_nextn_predict_layers=1)
    found, = check("quant-config-vs-file", quantised.tensors("fp8-block") | extra, said)
    assert (found.severity, found.subject) == ("info", "model.layers.4.self_attn.o_proj.weight")
    found, = check("quant-config-vs-file", quantised.tensors("fp8-block") | extra, said, on(speculative="mtp"))
    assert found.severity == "error"


@pytest.mark.parametrize(("version", "plain", "but", "severity"), [
    ("", "self_attn.o_proj", ["lm_head"], "warning"), ("0.27.0", "self_attn.o_proj", ["lm_head"], "warning"),
    ("0.20.0", "self_attn.o_proj", ["lm_head"], "error"), ("0.6.0", "self_attn.o_proj", ["lm_head"], "error"),
    ("0.27.0", ODD, ["lm_head"], "error"),
    ("0.27.0", "self_attn.o_proj", [], "error"), ("0.27.0", "self_attn.o_proj", ["lm_head", "o_prj"], "error"),
    ("0.27.0", ".", ["lm_head"], "error")])  # nothing at all is stored as the config says
def test_an_engine_that_lists_the_architecture(check, version: str, plain: str, but: list[str], severity: str) -> None:
    # Kimi-K3's config excludes neither of its latent projections; vLLM has model code for it since 0.27.0
    engine = msgspec.structs.replace(
        SMALL.engine, facts=EngineRequest(supported_since={"TinyForCausalLM": "" if version == "0.6.0" else "0.27.0"}),
        version=version, read_from="0.8.5", sources={"supported_since": "registry.py"})
    found = check("quant-config-vs-file", quantised.tensors("fp8-block", {plain: "bf16"}),
                  quantised.config({**quantised.FP8, "modules_to_not_convert": but}),
                  msgspec.structs.replace(SMALL, engine=engine))
    assert {finding.severity for finding in found} == {severity}


def test_nested_statement_and_prefix(check) -> None:
    # as in Kimi-K2.5: quantization_config inside text_config, and a vision tower that it does not speak of
    tensors = quantised.tensors("int4", prefix="language_model.model.", head="language_model.lm_head")
    tensors |= {"vision_tower.blocks.0.mlp.fc0.weight": ((64, 64), "BF16")}
    text = {**quantised.CONFIG, "quantization_config": {
        **quantised.group(4, "int", 64, format="pack-quantized"), "ignore": ["lm_head", "re:.*self_attn.*"]}}
    config: dict[str, object] = {"architectures": ["TinyForConditionalGeneration"], "model_type": "tiny_vl",
                                 "text_config": text, "vision_config": {"hidden_size": 64}}
    found = check("quant-config-vs-file", {**tensors}, config)
    assert {one.facts["config"] for one in found} == {"bf16"} and {one.facts["file"] for one in found} == {"w4a16"}
    right = {name: what for name, what in tensors.items() if "self_attn" not in name}
    for layer in range(quantised.LAYERS):
        for module, shape in quantised.MODULES.items():
            if "self_attn" in module:
                right |= quantised.stored(f"language_model.model.layers.{layer}.{module}", shape, "bf16")
    assert check("quant-config-vs-file", right, config) == []


MIXED = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {
    f"model.layers.{layer}.{module}": {"quant_algo": "NVFP4" if "mlp" in module else "FP8", "group_size": 16}
    for layer in range(quantised.LAYERS) for module in quantised.MODULES}}
GROUPS = {"quant_method": "compressed-tensors", "format": "mixed-precision", "ignore": ["lm_head"], "config_groups": {
    "group_0": {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
                "format": "float-quantized"},
    "group_1": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group",
                "group_size": 16}, "format": "nvfp4-pack-quantized"}}}


@pytest.mark.parametrize(("said", "attention"), [(MIXED, "fp8-tensor"), (GROUPS, "fp8-row")])
def test_mixed_checkpoints(check, said: dict[str, object], attention: str) -> None:
    good = quantised.tensors("nvfp4", {"self_attn": attention})
    assert check("quant-config-vs-file", good, quantised.config(said)) == []
    found = check("quant-config-vs-file", quantised.tensors("nvfp4", {"layers.1.self_attn.q": "nvfp4",
                                                                      "self_attn": attention}), quantised.config(said))
    assert [(one.subject, one.facts["config"], one.facts["file"]) for one in found] == [
        ("model.layers.1.self_attn.q_proj.weight", "fp8", "nvfp4")]


@pytest.mark.parametrize("exception", [
    {"dynamic": {"-:.*o_proj.*": {}}}, {"dynamic": {"-:model\\.layers\\.[0-3]\\.self_attn\\.o_proj": {}}},
    {"quant_method": "auto-round", "data_type": "int", "extra_config": {
        f"model.layers.{layer}.self_attn.o_proj": {"bits": 16, "data_type": "float"} for layer in range(4)}},
    {"modules_in_block_to_quantize": [["self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj"],
                                      ["mlp.up_proj", "mlp.gate_proj"], ["mlp.down_proj"]]},
])
def test_exceptions_of_methods_with_bits(check, exception: dict[str, object]) -> None:
    said = quantised.config({**quantised.GPTQ, **exception})
    assert check("quant-config-vs-file", quantised.tensors("gptq", {"o_proj": "bf16"}), said) == []
    found, = check("quant-config-vs-file", quantised.tensors("gptq"), said)
    assert found.facts["count"] == quantised.LAYERS


def test_experts_with_a_dtype_of_their_own(check) -> None:
    # DeepSeek-V4: fp8 in quantization_config, and expert_dtype = "fp4" beside it
    tensors = {name: what for name, what in quantised.tensors("fp8-block").items() if ".mlp." not in name}
    for layer in range(quantised.LAYERS):
        tensors[f"model.layers.{layer}.mlp.gate.weight"] = ((2, 256), "BF16")
        for expert in range(2):
            for module, shape in quantised.MODULES.items():
                name = f"model.layers.{layer}.mlp.experts.{expert}.{module[4:]}"
                tensors |= {name.replace("weight_packed", "weight"): what for name, what in quantised.stored(
                    name, shape, "mxfp4").items()} if module.startswith("mlp") else {}
    experts = {"n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 512}
    said = quantised.config({**quantised.FP8, "scale_fmt": "ue8m0"}, **experts)
    assert check("quant-config-vs-file", tensors, {**said, "expert_dtype": "fp4"}) == []
    found = check("quant-config-vs-file", tensors, said)
    assert {one.facts["file"] for one in found} == {"mxfp4"} and {one.facts["config"] for one in found} == {"fp8"}


def test_routers_small_matrices_and_full_precision_are_left_plain_by_everybody(check) -> None:
    # DeepSeek-V3.2 excludes neither its router nor the indexer's weights_proj, and no engine quantises them
    extra: tiny_release.Tensors = {}
    for layer in range(quantised.LAYERS):
        extra[f"model.layers.{layer}.self_attn.indexer.weights_proj.weight"] = ((64, 256), "BF16")
        extra[f"model.layers.{layer}.self_attn.compressor.wkv.weight"] = ((256, 256), "BF16")
        extra[f"model.layers.{layer}.self_attn.f_b_proj.weight"] = ((256, 256), "F32")
    assert check("quant-config-vs-file", quantised.tensors("fp8-block") | extra, quantised.config(quantised.FP8)) == []


def test_an_unknown_method_says_nothing(check) -> None:
    said = quantised.config({"quant_method": "something-new", "bits": 3})
    assert check("quant-config-vs-file", quantised.tensors("int8"), said) == []


FUSES = [["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"]]


def test_fused_parameters_in_two_formats(check) -> None:
    # as in_proj_qkv in FP8 beside in_proj_z in BF16 (lightseekorg/tokenspeed#766)
    tensors = quantised.tensors("fp8-block", {"layers.1.self_attn.k_proj": "bf16", "o_proj": "bf16"})
    found, = check("quant-fusion-mixed", tensors, quantised.config(quantised.FP8), on(fuses=FUSES))
    assert found.severity == "error"
    assert "model.layers.1.self_attn.k_proj.weight" in found.subject
    assert found.facts["formats"] == {"q_proj": "fp8", "k_proj": "bf16", "v_proj": "fp8"}
    assert check("quant-fusion-mixed", tensors, quantised.config(quantised.FP8)) == []  # nobody says that it fuses


def test_fused_parameters_with_two_kinds_of_scale(check) -> None:
    tensors = quantised.tensors("fp8-block", {"up_proj": "fp8-row"})
    found, = check("quant-fusion-mixed", tensors, quantised.config(quantised.FP8), on(fuses=FUSES))
    assert "up_proj" in found.subject and found.facts["count"] == quantised.LAYERS


def test_fused_scales_of_which_one_is_absent(check) -> None:
    tensors = quantised.tensors("fp8-block")
    for layer in range(quantised.LAYERS):
        del tensors[f"model.layers.{layer}.self_attn.v_proj.weight_scale_inv"]
    how = on(partial=True, fuses=FUSES, fuse_suffixes=[".weight", ".weight_scale_inv"])
    found, = check("quant-fusion-mixed", tensors, quantised.config(quantised.FP8), how)
    assert found.facts["formats"]["v_proj"] == "fp8 without .weight_scale_inv"
    assert check("quant-fusion-mixed", quantised.tensors("fp8-block"), quantised.config(quantised.FP8), how) == []


@pytest.mark.parametrize("form", quantised.ALL)
def test_fused_parameters_in_one_format(check, form: str) -> None:
    tensors = quantised.tensors(form, {"self_attn": "bf16", "layers.3.": "bf16"})
    for layer in range(quantised.LAYERS):  # scales of the cache belong to no weight
        tensors[f"model.layers.{layer}.self_attn.k_proj.k_scale"] = ((), "F32")
    assert check("quant-fusion-mixed", tensors, quantised.config(quantised.ALL[form]), on(fuses=FUSES)) == []


def test_fused_parameters_of_a_config_alone(tmp_path: Path) -> None:
    def run(*excluded: str) -> list[Finding]:
        tmp_path.joinpath("config.json").write_text(json.dumps(quantised.config(
            {**quantised.FP8, "modules_to_not_convert": list(excluded)})))
        found = preflight(read(tmp_path, cache=tmp_path / "cache"), on(fuses=FUSES)).findings
        return [one for one in found if one.rule == "quant-fusion-mixed"]

    one, two = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"
    assert "self_attn.v_proj" in run(one, two)[0].subject
    assert run(one, two, "model.layers.0.self_attn.v_proj") == run("self_attn") == run() == []
