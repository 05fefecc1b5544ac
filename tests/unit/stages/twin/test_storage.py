"""Every format that a matrix is stored in: shapes for other sizes, and values that engines would read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support import quantised, twins

from dayzero.errors import ReleaseError
from dayzero.stages.twin.modules import form_of
from dayzero.stages.twin.storage import Part, Storage, storage

SCHEMES = {"bf16": ("bf16", 1), "f32": ("f32", 1), "fp8-block": ("fp8", 1), "fp8-rounded": ("fp8", 1),
           "fp8-row": ("fp8", 1), "fp8-tensor": ("fp8", 1), "mxfp8": ("mxfp8", 1), "mxfp4": ("mxfp4", 2),
           "nvfp4": ("nvfp4", 2), "int4": ("int4", 8), "gptq": ("int4", 8), "awq": ("int4", 8), "int8": ("int8", 1)}
"""Form of tests/support/quantised.py -> scheme, values in a stored item."""
ERRORS = {"bf16": 0.003, "f32": 0.0, "fp8-block": 0.03, "fp8-rounded": 0.03, "fp8-row": 0.03, "fp8-tensor": 0.03,
          "mxfp8": 0.03, "mxfp4": 0.14, "nvfp4": 0.11, "int4": 0.12, "gptq": 0.12, "awq": 0.12, "int8": 0.01}
"""Largest root of the mean squared error, in standard deviations of the values: half a step of each format and more."""


def of(form: str, shape: tuple[int, int], scheme: str, values: int) -> Storage:
    tensors = quantised.stored("m", shape, form)
    parts = {name.removeprefix("m"): Part(form_of(f"m{name.removeprefix('m')}")[0], dtype, stored)
             for name, (stored, dtype) in tensors.items()}  # fmt: skip
    return storage(parts, scheme, values, (128, 128) if "block" in form else (64,), "m")


def read_back(made: dict[str, Any], stored: Storage) -> Any:
    tensors = {f"m{end}": (stored.parts[end].dtype, items) for end, items in made.items()}
    return twins.matrices(tensors)["m"]


@pytest.mark.parametrize("form", SCHEMES)
def test_values_that_engines_read(form: str) -> None:
    stored = of(form, (512, 768), *SCHEMES[form])
    assert stored.logical() == (512, 768)
    matrix = np.random.default_rng(1).standard_normal((256, 384), np.float32) / 16
    made = stored.encode(matrix)
    assert {end: items.shape for end, items in made.items()} == stored.stored((256, 384))
    back = read_back(made, stored)
    error = np.sqrt(np.mean((back - matrix) ** 2)) * 16
    assert error <= ERRORS[form]
    assert abs(np.std(back) * 16 - 1) < 0.03


@pytest.mark.parametrize("form", SCHEMES)
def test_shapes_are_those_of_the_format(form: str) -> None:
    stored = of(form, (512, 768), *SCHEMES[form])
    wanted = {name.removeprefix("m"): shape for name, (shape, _) in quantised.stored("m", (256, 384), form).items()}
    assert stored.stored((256, 384)) == wanted


def test_a_part_of_a_block_has_a_scale() -> None:
    stored = of("fp8-block", (576, 768), "fp8", 1)
    assert stored.block == (128, 128)
    assert stored.stored((192, 256))[".weight_scale_inv"] == (2, 2)
    matrix = np.random.default_rng(2).standard_normal((192, 256), np.float32)
    assert np.abs(read_back(stored.encode(matrix), stored) - matrix).max() < 0.2


def test_stacked_experts_in_blocks() -> None:
    parts = {"_blocks": Part("packed", "U8", (4, 64, 6, 16)), "_scales": Part("scale", "U8", (4, 64, 6))}
    stored = storage(parts, "mxfp4", 2, (), "m")
    assert stored.logical() == (4, 64, 192)
    matrix = np.random.default_rng(3).standard_normal((2, 32, 64), np.float32)
    made = stored.encode(matrix)
    assert {end: items.shape for end, items in made.items()} == {"_blocks": (2, 32, 2, 16), "_scales": (2, 32, 2)}
    assert np.sqrt(np.mean((read_back(made, stored) - matrix) ** 2)) < 0.14


def test_scale_of_all_that_divides() -> None:
    """compressed-tensors keeps the inverse of what others keep as the scale of the whole matrix."""
    parts = {".weight_packed": Part("packed", "U8", (64, 64)), ".weight_scale": Part("scale", "F8_E4M3", (64, 8)),
             ".weight_global_scale": Part("global_scale", "F32", (1,)),
             ".input_global_scale": Part("global_scale", "F32", (1,))}  # fmt: skip
    stored = storage(parts, "nvfp4", 2, (16,), "m")
    matrix = np.random.default_rng(4).standard_normal((64, 128), np.float32) / 8
    made = stored.encode(matrix)
    assert made[".weight_global_scale"][0] > 1000  # 448 * 6 / 0.5
    assert np.sqrt(np.mean((read_back(made, stored) - matrix) ** 2)) * 8 < 0.11


def test_the_table_of_the_shape_is_that_of_the_matrix() -> None:
    stored = of("int4", (512, 768), "int4", 8)
    assert stored.encode(np.zeros((128, 256), np.float32))[".weight_shape"].tolist() == [128, 256]


def test_groups_of_rows_are_numbered() -> None:
    made = of("gptq", (512, 768), "int4", 8).encode(np.ones((128, 256), np.float32))
    assert made[".g_idx"].tolist() == [at // 64 for at in range(256)]
    assert set(made[".qzeros"].reshape(-1).tolist()) == {0x77777777}  # 8, stored less one


@pytest.mark.parametrize(("scheme", "values", "parts"), [
    ("packed", 1, {".weight_packed": Part("packed", "I32", (64, 7))}),
    ("fp8", 1, {".weight": Part("weight", "F8_E4M3", (64, 64)), ".weight_scale": Part("scale", "F32", (2, 3, 5))}),
    ("fp8", 1, {".weight": Part("weight", "F8_E4M3", (64, 64)), ".weight_scale": Part("scale", "F32", (63, 1))}),
])  # fmt: skip
def test_layouts_that_are_not_known_are_named(scheme: str, values: int, parts: dict[str, Part]) -> None:
    with pytest.raises(ReleaseError, match=r"layers\.0\.mlp.*not known"):
        storage(parts, scheme, values, (), "layers.0.mlp")
