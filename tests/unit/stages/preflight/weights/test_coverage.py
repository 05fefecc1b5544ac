"""What an engine's loader drops, does not expect or has no parameter for, on small releases."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import tiny_release as tiny
from tests.support.told import Told, teller

from dayzero.schema import Finding

STACKED = {"model.layers.0.mlp.experts.gate_up_proj": ((4, 192, 64), "BF16"),
           "model.layers.0.mlp.experts.down_proj": ((4, 64, 96), "BF16")}
EACH = ["experts.{e}.gate_proj.weight", "experts.{e}.up_proj.weight", "experts.{e}.down_proj.weight"]
Q = "model.layers.4.self_attn.q_proj.weight"


@pytest.fixture
def tell(tmp_path: Path) -> Told:
    return teller(tmp_path, "weights-dropped", "weights-unexpected", "weights-filter-dead")


def heard(found: list[Finding]) -> list[tuple[str, str, str]]:
    return [(finding.rule, finding.severity, finding.subject) for finding in found]


def with_prediction() -> tiny.Tensors:
    return tiny.dense_tensors() | {"model.layers.12.eh_proj.weight": ((64, 128), "BF16"),
                                   "model.layers.12.self_attn.q_proj.weight": ((144, 64), "BF16"),
                                   "model.layers.12.mlp.up_proj.weight": ((96, 64), "BF16")}


@pytest.mark.parametrize("policy", ["skip", "warn"])
def test_stacked_experts_that_the_loader_does_not_know(tell: Told, policy: str) -> None:
    # 1CatAI/1Cat-vLLM#21
    found = tell(STACKED, tiny.EXPERT_CONFIG, partial=True, expects=EACH, on_unknown=policy)
    assert heard(found) == [("weights-dropped", "error", "model.layers.0.mlp.experts.down_proj"),
                            ("weights-dropped", "error", "model.layers.0.mlp.experts.gate_up_proj")]
    assert {finding.facts["filled"] for finding in found} == {0}


def test_a_loader_that_stops_at_them(tell: Told) -> None:
    found = tell(STACKED, tiny.EXPERT_CONFIG, partial=True, expects=EACH, on_unknown="error")
    assert {finding.rule for finding in found} == {"weights-unexpected"}


@pytest.mark.parametrize("facts", [
    {"expects": ["experts.gate_up_proj", "experts.down_proj"], "on_unknown": "skip"},
    {"expects": EACH}, {}, {"expects": ["vision.blocks.{L}.weight"], "on_unknown": "warn"},
])
def test_known_names_and_unknown_policies_are_quiet(tell: Told, facts: dict[str, object]) -> None:
    assert tell(STACKED, tiny.EXPERT_CONFIG, partial=True, **facts) == []


def test_scales_that_are_skipped_are_one_finding_for_each_pattern(tell: Told) -> None:
    found = tell(tiny.expert_tensors(), tiny.EXPERT_CONFIG, expects=EACH, on_unknown="skip")
    assert [finding.subject.rpartition(".")[2] for finding in found] == ["weight_scale_inv"] * 3
    assert all("{E}" in finding.subject and finding.facts["tensors"] == 48 for finding in found)


def test_a_filter_for_names_that_were_renamed_before(tell: Told) -> None:
    # vllm-project/vllm#16450
    found = tell(with_prediction(), renames=[{"strip": "model."}], filters=[{"drop": "model.layers.12."}])
    assert heard(found)[0] == ("weights-filter-dead", "error", "model.layers.12.")


@pytest.mark.parametrize(("renames", "dropped"), [
    ([{"strip": "model."}], "layers.12."), ([], "model.layers.12."), ([{"strip": "model."}], "vision_tower."),
])
def test_filters_that_live_or_never_would(tell: Told, renames: list[dict[str, str]], dropped: str) -> None:
    found = tell(with_prediction(), tiny.CONFIG | {"num_nextn_predict_layers": 1}, renames=renames,
                 filters=[{"drop": dropped}])
    assert found == []


def test_a_filter_that_is_too_wide_takes_decoder_layers(tell: Told) -> None:
    found = tell(with_prediction(), filters=[{"drop": "model.layers.1"}])  # 1, 10 and 11 as well as 12
    assert {finding.rule for finding in found} == {"weights-dropped"}
    assert "model.layers.10.self_attn.q_proj.weight" in {finding.subject for finding in found}
    assert not any("layers.12" in finding.subject for finding in found)


def test_prediction_layers_count_once_they_are_wanted(tell: Told) -> None:
    found = tell(with_prediction(), tiny.CONFIG | {"num_nextn_predict_layers": 1}, speculative="mtp",
                 filters=[{"drop": "model.layers.12."}])
    assert ("weights-dropped", "error", "model.layers.12.eh_proj.weight") in heard(found)


def test_a_scale_without_a_parameter(tell: Told) -> None:
    # vllm-project/vllm#43515: the scale is in the file, the code builds the module without
    tensors = {Q: ((144, 64), "F8_E4M3"), f"{Q}_scale": ((144, 1), "F32")}
    declares = {Q: ([144, 64], "F8_E4M3")}
    assert heard(tell(tensors, partial=True, declares=declares)) == [("weights-unexpected", "error", f"{Q}_scale")]
    skipped = tell(tensors, partial=True, declares=declares, on_unknown="skip")
    assert heard(skipped) == [("weights-dropped", "error", f"{Q}_scale")]
    assert tell(tensors, partial=True, declares=declares | {f"{Q}_scale": ([144, 1], "F32")}) == []


def test_partial_declarations_say_nothing_of_other_modules(tell: Told) -> None:
    assert tell(tiny.dense_tensors(), declares={Q: ([144, 64], "BF16")}) == []
    alone = {"model.layers.4.self_attn.sinks": ((9,), "F32"), "model.layers.4.self_attn.other": ((9,), "F32")}
    assert tell(tiny.dense_tensors() | alone, declares={"model.layers.4.self_attn.sinks": ([9], "F32")}) == []


def test_a_rename_that_reaches_too_far(tell: Told) -> None:
    # vllm-project/vllm-ascend#10316: every name with .scale in it is renamed
    names = {"model.layers.4.hc.scale": ((4,), "F32"), Q: ((144, 64), "BF16")}
    found = tell(names, partial=True, renames=[{"from": ".scale", "to": ".weight_scale"}],
                 declares={"model.layers.4.hc.scale": ([4], "F32")})
    assert ("weights-dropped", "error", "model.layers.4.hc.scale") in heard(found)


def test_a_fused_parameter_of_which_a_part_is_missing(tell: Told) -> None:
    tensors = {name: what for name, what in tiny.dense_tensors().items()
               if name != "model.layers.4.self_attn.v_proj.weight"}
    fused = {"declares": {"model.layers.4.self_attn.qkv_proj.weight": ([144 + 48 + 48, 64], "BF16")},
             "fuses": [["q_proj", "k_proj", "v_proj"]]}
    [found] = tell(tensors, **fused)
    assert (found.subject, found.facts["filled"]) == ("model.layers.4.self_attn.qkv_proj.weight", 0.8)
    assert tell(tiny.dense_tensors(), **fused) == []


def test_decoder_layers_beyond_those_of_the_config(tell: Told) -> None:
    more = {f"model.layers.12.{name}": ((64,), "BF16") for name in ("input_layernorm.weight",)}
    assert heard(tell(tiny.dense_tensors() | more)) == [("weights-unexpected", "error", "model.layers.12")]


@pytest.mark.parametrize(("declares", "facts", "missing"), [
    ({Q: ([144, 64], "BF16"), "model.layers.4.self_attn.q_norm.weight": ([16], "BF16")}, {},
     ["model.layers.4.self_attn.q_norm.weight"]),
    ({"layers.4.self_attn.q_proj.weight": ([144, 64], "BF16")}, {"renames": [{"strip": "model."}]}, []),
    ({"model.layers.4.self_attn.qkv_proj.weight": ([240, 64], "BF16")}, {"fuses": [["q_proj", "k_proj"]]}, []),
    ({"model.layers.4.mlp.experts.w13_weight": ([4, 192, 64], "BF16")}, {}, []),  # stacked from one for each expert
    ({"model.layers.12.eh_proj.weight": ([64, 128], "BF16")}, {}, []),  # a rule of its own: mtp-absent
    ({"model.layers.13.rot.bias": ([64], "BF16")}, {}, ["model.layers.13.rot.bias"]),  # of one that is there
    ({"lm_head.weight": ([128, 64], "BF16")}, {}, []),  # tied
])
def test_what_an_engine_declares_and_a_sample_lacks(tmp_path: Path, declares: dict[str, tuple[list[int], str]],
                                                    facts: dict[str, object], missing: list[str]) -> None:
    tensors = {Q: ((144, 64), "BF16"), "model.layers.4.mlp.experts.0.up_proj.weight": ((96, 64), "BF16"),
               "model.layers.13.rot.weight": ((64, 64), "BF16")}
    found = teller(tmp_path, "weights-missing")(tensors, partial=True, declares=declares, **facts)
    assert [finding.subject for finding in found] == missing


@pytest.mark.parametrize(("suffixes", "dropped"), [
    ([".weight"], ["k_proj.weight_scale_inv", "q_proj.weight_scale_inv"]), ([".weight", ".weight_scale_inv"], []),
])
def test_scales_that_are_not_fused_with_their_weights(tell: Told, suffixes: list[str], dropped: list[str]) -> None:
    part = "model.layers.4.self_attn."
    tensors = {f"{part}{member}.weight{scale}": ((2, 1) if scale else (144, 64), "F32" if scale else "F8_E4M3")
               for member in ("q_proj", "k_proj", "o_proj") for scale in ("", "_scale_inv")}
    config = tiny.CONFIG | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    found = tell(tensors, config, partial=True, fuses=[["q_proj", "k_proj"]], fuse_suffixes=suffixes)
    assert heard(found) == [("weights-dropped", "error", f"{part}{name}") for name in dropped]
    assert all(finding.facts["filled"] == 0 for finding in found)
