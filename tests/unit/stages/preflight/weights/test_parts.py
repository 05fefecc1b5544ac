"""What no layer can be without, looked for in every layer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import quantised, tiny_release
from tests.support.plan_models import target

from dayzero.stages.preflight import preflight
from dayzero.stages.read import read

SMALL = target(1, concurrency=1, input_tokens=16, output_tokens=16, max_batched_tokens=16)


def missing(folder: Path, tensors: tiny_release.Tensors) -> list[str]:
    release = tiny_release.write(folder / "release", tensors, {**quantised.CONFIG, "num_hidden_layers": 12})
    found = preflight(read(release, cache=folder / "cache"), SMALL).findings
    return [finding.subject for finding in found if finding.rule == "weights-missing"]


@pytest.mark.parametrize("form", ["bf16", "fp8-block", "int4", "gptq"])
@pytest.mark.parametrize("layers", [(), (4,), (1, 2, 3), (0, 2, 4, 6, 8, 10)])
@pytest.mark.parametrize("module", ["self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"])
def test_a_projection_that_some_layers_lack(tmp_path: Path, module: str, layers: tuple[int, ...], form: str) -> None:
    tensors = quantised.tensors(form, layers=12)
    left = {name: one for name, one in tensors.items()
            if not any(f"layers.{layer}.{module}." in name for layer in layers)}
    found = missing(tmp_path, left)
    assert {int(subject.split(".")[2]) for subject in found} == set(layers)
    assert all(f".{module}." in subject for subject in found)


def test_keys_can_be_those_of_another_layer(tmp_path: Path) -> None:
    # google/gemma-3n shares keys and values among its last layers
    tensors = {name: one for name, one in quantised.tensors("bf16", layers=12).items()
               if not any(f"layers.{layer}.self_attn.{matrix}" in name
                          for layer in range(8, 12) for matrix in ("k_proj", "v_proj"))}
    assert missing(tmp_path, tensors) == []


@pytest.mark.parametrize("layers", [(4,), (1, 2, 3)])
def test_a_fused_projection_that_some_layers_lack(tmp_path: Path, layers: tuple[int, ...]) -> None:
    # as microsoft/Phi-4-mini-instruct stores queries, keys and values
    tensors = {name: one for name, one in quantised.tensors("bf16", layers=12).items()
               if not any(f"self_attn.{matrix}_proj" in name for matrix in "qkv")}
    tensors |= {f"model.layers.{layer}.self_attn.qkv_proj.weight": ((512, quantised.HIDDEN), "BF16")
                for layer in set(range(12)) - set(layers)}
    assert missing(tmp_path, tensors) == [f"model.layers.{layer}.self_attn.qkv_proj.weight" for layer in layers]
