"""What engine and device can compute with."""

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

SCHEMES = {"fp8-block": "fp8", "fp8-rounded": "fp8", "fp8-row": "fp8", "fp8-tensor": "fp8", "mxfp8": "mxfp8",
           "mxfp4": "mxfp4", "nvfp4": "nvfp4", "int4": "w4a16", "gptq": "w4a16", "awq": "w4a16", "int8": "w8a8"}


def check(folder: Path, form: str, said: object, *, alone: bool = False, arch: str = "sm90", fp8: str | None = None,
          **facts: object) -> list[Finding]:
    folder = folder / ("alone" if alone else "release")
    if alone:
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(quantised.config(said)))
    else:
        tiny_release.write(folder, quantised.tensors(form), quantised.config(said))
    where = target(1, concurrency=1, input_tokens=16, output_tokens=16, max_batched_tokens=16)
    engine = msgspec.structs.replace(where.engine, facts=msgspec.convert(facts, EngineRequest))
    device = msgspec.structs.replace(where.cluster.device, arch=arch, fp8=fp8)
    where = msgspec.structs.replace(where, engine=engine,
                                    cluster=msgspec.structs.replace(where.cluster, device=device))
    found = preflight(read(folder, cache=folder.parent / "cache"), where).findings
    return [one for one in found if one.rule in ("quant-unsupported", "fp8-dialect")]


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("form", quantised.ALL)
def test_schemes(tmp_path: Path, form: str, alone: bool) -> None:
    said, scheme = quantised.ALL[form], SCHEMES[form]
    found, = check(tmp_path, form, said, alone=alone, schemes=["bf16", "f16", "none of them"])
    assert (found.rule, found.severity, found.subject) == ("quant-unsupported", "error", scheme)
    assert check(tmp_path, form, said, alone=alone, schemes=["bf16", scheme.upper()]) == []
    assert check(tmp_path, form, said, alone=alone) == []


@pytest.mark.parametrize(("inputs", "scheme"), [(None, "w4a16"), ({"num_bits": 8, "type": "int"}, "w4a8"),
                                                ({"num_bits": 8, "type": "float"}, "w4a8")])
def test_activations_are_a_part_of_the_scheme(tmp_path: Path, inputs: object, scheme: str) -> None:
    said = quantised.group(4, "int", 64, format="pack-quantized")
    said["config_groups"]["group_0"]["input_activations"] = inputs  # type: ignore[index]
    for alone in (False, True):
        found, = check(tmp_path, "int4", said, alone=alone, schemes=["bf16", "w8a8"])
        assert found.subject == scheme


def test_plain_releases(tmp_path: Path) -> None:
    assert check(tmp_path, "bf16", None, schemes=["bf16", "w8a8"]) == []
    found, = check(tmp_path, "bf16", None, schemes=["f16"])
    assert found.subject == "bf16"
    assert check(tmp_path, "f32", None, schemes=["bf16"]) == []  # cast


def backend(name: str, op: str, *archs: str, default: bool = True) -> dict[str, object]:
    return {"name": name, "op": op, "archs": list(archs), "default": default}


@pytest.mark.parametrize(("backends", "arch", "alternatives"), [
    # the only default for MXFP4 experts is built for another chip (vllm-project/recipes#838)
    ([backend("fast", "mxfp4", "gfx950"), backend("emulation", "mxfp4", "*", default=False)], "gfx942", ["emulation"]),
    ([backend("fast", "mxfp4", "gfx950"), backend("slow", "mxfp4", "gfx950", default=False)], "gfx942", []),
    ([backend("slow", "mxfp4", "gfx942", default=False)], "gfx942", ["slow"]),
    ([backend("fast", "mxfp4", "gfx950"), backend("other", "mxfp4", "gfx94*")], "gfx942", None),
    ([backend("fast", "mxfp4", "sm_100a")], "sm100", None), ([backend("fast", "MXFP4", "SM90")], "sm90a", None),
    ([backend("fast", "mxfp4", "sm90")], "sm120", []), ([backend("fast", "nvfp4", "sm100")], "sm90", None),
    ([backend("fast", "mxfp4", "gfx950")], "", None)])
def test_backends(tmp_path: Path, backends: list[object], arch: str, alternatives: list[str] | None) -> None:
    found = check(tmp_path, "mxfp4", quantised.ALL["mxfp4"], arch=arch, backends=backends)
    assert [one.facts["alternatives"] for one in found] == ([] if alternatives is None else [alternatives])


@pytest.mark.parametrize(("form", "dialect", "told"), [
    ("fp8-block", "e4m3fnuz", True), ("fp8-rounded", "e4m3fnuz", True), ("mxfp8", "e4m3fnuz", True),
    ("fp8-row", "e4m3fn", False), ("fp8-block", None, False), ("mxfp4", "e4m3fnuz", False),
    ("bf16", "e4m3fnuz", False)])
def test_dialects(tmp_path: Path, form: str, dialect: str | None, told: bool) -> None:
    said = quantised.ALL.get(form)
    for alone in (False, True) if form in ("fp8-block", "bf16") else (False,):
        found = check(tmp_path, form, said, alone=alone, fp8=dialect)
        assert [(one.rule, one.severity, one.facts["scale_factor"]) for one in found] == (
            [("fp8-dialect", "error", 2)] if told else [])
    found = check(tmp_path, form, said, fp8=dialect, fp8_conversion=True)
    assert [one.severity for one in found] == (["warning"] if told else [])
