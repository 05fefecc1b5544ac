"""Statements of quantisation in the dialects of configs."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import quantised

from dayzero.data.quantisation import statements
from dayzero.stages.preflight.quant.entries import Entries
from dayzero.stages.preflight.quant.stated import Format, stated

NAME, EXPERT = "model.layers.3.self_attn.o_proj", "model.layers.3.mlp.experts.7.up_proj"


@pytest.mark.parametrize(("table", "scheme", "block"), [
    (quantised.FP8, "fp8", (128, 128)), (quantised.ROW8, "fp8", None), (quantised.W8A8, "w8a8", None),
    (quantised.GPTQ, "w4a16", (1, 64)), ({**quantised.GPTQ, "group_size": -1}, "w4a16", (1, 0)),
    (quantised.QUARK, "mxfp4", (1, 32)), (quantised.ALL["nvfp4"], "nvfp4", (1, 16)),
    ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8", None),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}, "w4a16", None),
    ({"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}, "w8a16", None),
    ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "data_type": "int"}, "w4a16", (1, 128)),
    ({"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp", "act_bits": 4}, "mxfp4", (1, 32)),
    ({"quant_method": "auto-round", "bits": 4, "act_bits": 8, "data_type": "int", "group_size": 32}, "w4a8", (1, 32)),
    ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "fp8", None),
    ({"quant_algo": "W4A16_AWQ", "group_size": 128}, "w4a16", (1, 128)), ({"quant_algo": "W4A8_AWQ"}, "w4a8", None),
    # nvidia/Qwen3-32B-FP8 style: groups without targets, and no quant_method
    ({"quant_algo": "FP8", "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}, "fp8", None),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "weights": {
        "num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}}}}, "fp8", (128, 128)),
])
def test_one_format_for_all(table: dict[str, object], scheme: str, block: tuple[int, int] | None) -> None:
    said = stated(table, {})
    assert said.understood
    assert said.of(NAME, "attention.o") == said.of(EXPERT, "experts.up") == Format(scheme, block)


def test_what_applies_to_experts_alone() -> None:
    # openai/gpt-oss-120b: quant_method = "mxfp4" is about the experts
    said = stated({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.mlp.router", "lm_head"]}, {})
    assert said.of(NAME, "attention.o") is None
    assert said.of(EXPERT, "experts.up") == Format("mxfp4", (1, 32), ("experts",))
    assert said.of("model.layers.3.mlp.router", "router") is None


def test_layers_with_tables_of_their_own() -> None:
    table = {**quantised.QUARK, "layer_quant_config": {"*self_attn*": {"weight": {"dtype": "fp8_e4m3"}}}}
    said = stated(table, {})
    assert said.of(NAME, "attention.o") == Format("fp8") and said.of(EXPERT, "experts.up") == Format("mxfp4", (1, 32))


@pytest.mark.parametrize("table", [
    {"quant_method": "new"}, {"quant_method": "gptq"}, {}, {"config_groups": {"g": {"weights": {"type": "posit"}}}},
    {"quant_method": "gptq", "bits": True}])
def test_words_that_are_not_known(table: dict[str, object]) -> None:
    assert not stated(table, {}).understood
    assert stated(None, {}).understood and stated(None, {}).rest is None


WORDS = st.sampled_from([
    "config_groups", "weights", "targets", "num_bits", "type", "group_size", "ignore", "quant_method", "quant_algo",
    "bits", "dynamic", "extra_config", "weight_block_size", "global_quant_config", "layer_quant_config", "weight",
    "dtype", "quantized_layers", "format", "strategy", "exclude_modules", "modules_in_block_to_quantize", "float",
    "int", "fp8", "gptq", "NVFP4", "Linear", "re:.*", "re:(", "-:x", "*", "a.*.b", "[", "model.layers.0",
    "", "expert_dtype"])
VALUES = st.recursive(st.one_of(WORDS, st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
                      lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=5)),
                      max_leaves=20)


@settings(deadline=None)
@given(st.dictionaries(WORDS, VALUES, max_size=8), st.text(alphabet="abL.019*[re:", max_size=30))
def test_no_table_ends_in_a_traceback(table: dict[str, Any], name: str) -> None:
    said = stated(table, table)
    for role in ("attention.q", "experts.up", ""):
        said.of(name, role)
    Entries([name, *said.excludes], exact=True).unmatched([name, "model.layers.0.x"])


def test_the_words_are_schemes_that_targets_know() -> None:
    schemes = {method.scheme for method in statements().methods} | {one.scheme for one in statements().elements}
    known = {"fp8", "mxfp8", "mxfp4", "nvfp4", "w4a8", "w4a16", "w8a8", "w8a16", "w{w}a{a}", "mxfp{w}", "nvfp{w}"}
    assert schemes <= known


def test_expressions_that_never_end() -> None:
    endless = [f"re:(?:x|xx)+[yz]{{{number}}}$" for number in range(1, 20)]
    entries = Entries([*endless, "lm_head"])
    assert entries.match("x" * 80 + "!") is None
    assert 1 <= len(entries.broken) < len(endless)  # the others are given up
    assert entries.match("language_model.lm_head") == "lm_head"
    assert entries.unmatched(["lm_head"]) == endless


def test_a_list_with_an_entry_for_every_expert_is_arranged_and_not_walked() -> None:
    entries = Entries(f"model.layers.{layer}.mlp.experts.{expert}.up*" for layer in range(92) for expert in range(896))
    started = time.process_time()
    assert entries.match("model.layers.91.mlp.experts.17.up_proj") == "model.layers.91.mlp.experts.17.up*"
    assert entries.broken == [] and time.process_time() - started < 1


def test_globs_for_whatever_there_may_be_are_bounded() -> None:
    entries = Entries(f"*expert{number}_*" for number in range(2000))
    assert len(entries.broken) == 1000 and entries.match("layers.0.expert999_.up") == "*expert999_*"


@pytest.mark.parametrize(("entry", "name", "matches"), [
    ("mlp.gate", "model.layers.0.mlp.gate", True), ("mlp.gate", "model.layers.0.mlp.gate_proj", False),
    ("model.layers.1", "model.layers.11.mlp", False), ("model.layers.1*", "model.layers.11.mlp", True),
    ("model.layers.3.x", "model.language_model.layers.3.x", True), ("model.layers.3.x", "mtp.layers.3.x", False),
    ("re:.*mlp", "model.layers.0.mlp.up", True), ("re:mlp", "model.layers.0.mlp.up", False),
    ("*shared_expert.*", "model.layers.0.mlp.shared_expert.up_proj", True), ("visual", "model.visual.blocks.0", True),
    ("self_attn", "model.layers.0.self_attn.q_proj", True), ("attn", "model.layers.0.self_attn.q_proj", False)])
def test_entries(entry: str, name: str, matches: bool) -> None:
    assert (Entries([entry]).match(name) == entry) == matches
