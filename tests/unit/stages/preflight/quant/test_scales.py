"""Scales against the blocks of the weights."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.support import quantised, tiny_release
from tests.support.plan_models import target

from dayzero.schema import Finding, Layout
from dayzero.schema.target import EngineRequest
from dayzero.stages.preflight import preflight
from dayzero.stages.read import read


def check(folder: Path, tensors: tiny_release.Tensors, said: object, *, layouts: tuple[Layout, ...] = (),
          vision: str = "replicated", **facts: object) -> list[Finding]:
    tiny_release.write(folder / "release", tensors, quantised.config(said))
    where = target(4, concurrency=1, input_tokens=16, output_tokens=16, max_batched_tokens=16)
    engine = msgspec.structs.replace(where.engine, facts=msgspec.convert(facts, EngineRequest), vision=vision)
    where = msgspec.structs.replace(where, engine=engine, partial=True, layouts=layouts)
    found = preflight(read(folder / "release", cache=folder / "cache"), where).findings
    return [one for one in found if one.rule == "scale-shape"]


@pytest.mark.parametrize("form", quantised.ALL)
def test_every_format_has_as_many_scales_as_blocks(tmp_path: Path, form: str) -> None:
    tensors = quantised.tensors(form)
    assert check(tmp_path, tensors, quantised.ALL[form]) == []
    assert check(tmp_path, tensors, quantised.ALL[form], scale_rounding="ceil", layouts=(Layout(tp=2),)) == []


# kv_a_proj_with_mqa of DeepSeek-V3: 576 rows are four and a half blocks
NAME = "model.layers.1.self_attn.kv_a_proj_with_mqa"


@pytest.mark.parametrize(("scale", "right"), [((5, 56), True), ((4, 56), False), ((5, 55), False), ((56, 5), False)])
def test_a_last_block_that_is_a_part(tmp_path: Path, scale: tuple[int, int], right: bool) -> None:
    tensors = quantised.tensors("fp8-block") | {
        f"{NAME}.weight": ((576, 7168), "F8_E4M3"), f"{NAME}.weight_scale_inv": (scale, "F32")}
    found = check(tmp_path, tensors, quantised.FP8)
    assert [(one.severity, one.subject, one.facts["file"], one.facts["expected"]) for one in found] == (
        [] if right else [("error", f"{NAME}.weight_scale_inv", list(scale), [5, 56])])


@pytest.mark.parametrize(("form", "end", "wrong"), [
    ("mxfp4", "weight_scale", (256, 7)), ("nvfp4", "weight_scale", (256, 8)), ("int4", "weight_scale", (256, 8)),
    ("mxfp8", "weight_scale", (256, 9))])
def test_groups_of_every_format(tmp_path: Path, form: str, end: str, wrong: tuple[int, int]) -> None:
    tensors = quantised.tensors(form)
    name = f"model.layers.1.self_attn.o_proj.{end}"
    tensors[name] = (wrong, tensors[name][1])
    found = check(tmp_path, tensors, quantised.ALL[form])
    assert [(one.subject, one.facts["file"]) for one in found] == [(name, list(wrong))]


def test_stacked_experts_and_fused_matrices(tmp_path: Path) -> None:
    tensors = quantised.tensors("fp8-block")
    experts, fused = "model.layers.1.mlp.experts.down_proj", "model.layers.1.self_attn.qkv_proj"
    tensors |= {f"{experts}.weight": ((4, 256, 192), "F8_E4M3"), f"{experts}.weight_scale_inv": ((4, 2, 2), "F32"),
                f"{fused}.weight": ((320, 256), "F8_E4M3"), f"{fused}.weight_scale_inv": ((4, 2), "F32")}
    assert check(tmp_path, tensors, quantised.FP8) == []
    tensors[f"{fused}.weight_scale_inv"] = ((2, 2), "F32")
    tensors[f"{experts}.weight_scale_inv"] = ((4, 2, 1), "F32")
    assert {one.subject for one in check(tmp_path, tensors, quantised.FP8)} == {
        f"{fused}.weight_scale_inv", f"{experts}.weight_scale_inv"}


def test_a_format_that_the_config_does_not_state_has_blocks_of_its_own(tmp_path: Path) -> None:
    # DeepSeek-V4: 4-bit experts under a config that says fp8 in blocks
    assert check(tmp_path, quantised.tensors("fp8-block", {"down_proj": "mxfp4"}), quantised.FP8) == []


VISION = "model.visual.blocks.0.mlp.linear_fc2"
TOWER: tiny_release.Tensors = {f"{VISION}.weight_packed": ((1152, 2152), "U8"),
                               f"{VISION}.weight_scale": ((1152, 135), "U8")}


@pytest.mark.parametrize(("vision", "tp", "told"), [
    ("split", 2, (67, 68)),  # vllm-project/vllm-ascend#12201
    ("replicated", 2, (134, 135)), ("split", 1, (134, 135)), ("split", 4, (33, 34))])
def test_an_engine_that_rounds_down(tmp_path: Path, vision: str, tp: int, told: tuple[int, int]) -> None:
    tensors = quantised.tensors("mxfp4") | TOWER
    how = {"layouts": (Layout(tp=tp),), "vision": vision}
    found = [one for one in check(tmp_path, tensors, quantised.ALL["mxfp4"], scale_rounding="floor", **how)
             if VISION in one.subject]
    assert [(one.facts["allocated"], one.facts["expected"]) for one in found] == [told]
    assert check(tmp_path, tensors, quantised.ALL["mxfp4"], scale_rounding="ceil", **how) == []
    assert check(tmp_path, tensors, quantised.ALL["mxfp4"], **how) == []


def test_shares_of_whole_blocks_and_of_parts(tmp_path: Path) -> None:
    tensors = quantised.tensors("mxfp4")
    assert check(tmp_path, tensors, quantised.ALL["mxfp4"], scale_rounding="floor", layouts=(Layout(tp=4),)) == []
    found = check(tmp_path, quantised.tensors("fp8-block"), quantised.FP8, scale_rounding="floor",
                  layouts=(Layout(tp=2), Layout(tp=4)))
    narrow = {(one.facts["layout"], one.facts["allocated"], one.facts["expected"]) for one in found}
    assert narrow == {("tp=2", 0, 1), ("tp=4", 0, 1)}
    assert all(any(part in one.subject for part in ("k_proj", "v_proj", "q_proj", "o_proj")) for one in found)
