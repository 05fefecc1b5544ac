"""Packed formats: whatever the layout on disk, the logical matrix and its parameters come out again."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.schema import Column, TensorGroup, TensorTable
from dayzero.stages.read import quant
from dayzero.stages.read.families import Dims, Part, parts_of

Stored = dict[str, tuple[str, tuple[int, ...]]]
"""Ending of the name -> dtype and shape."""


def read(stored: Stored, stem: str = "model.layers.{L}.mlp.down_proj", experts: int = 0, inp: int = 64,
         config: dict[str, Any] | None = None) -> dict[str, Part]:
    """The parts by ending of their name."""
    groups = [TensorGroup(pattern=stem + end, shape=shape, dtype=dtype, layer=Column([0, 1]), expert=Column([-1, -1]),
                          file=Column([-1, -1]), start=Column([0, 0])) for end, (dtype, shape) in stored.items()]
    parts = parts_of(TensorTable(files=(), groups=tuple(groups)), Dims(2, inp, experts, config))
    return dict(zip(stored, parts, strict=True))


def layouts(out: int, inp: int, bits: int) -> dict[str, tuple[Stored, dict[str, Any], str, int]]:
    """Format -> (files, config, scheme, stored axis of `inp`). Sizes are multiples of 256."""
    square, rows = (out, inp), (out, inp // 32)
    ct = {"config_groups": {"g": {"weights": {"num_bits": bits, "group_size": 32}}}}
    return {
        "plain": ({".weight": ("BF16", (out, inp))}, {}, "bf16", 1),
        "fp8": ({".weight": ("F8_E4M3", square), ".weight_scale_inv": ("F32", (out // 128, inp // 128))}, {}, "fp8", 1),
        "fp8 with rounded scales": ({".weight": ("F8_E4M3", square), ".scale": (
            "F8_E8M0", (out // 128, inp // 128))}, {}, "fp8", 1),
        "mxfp8": ({".weight": ("F8_E4M3", (out, inp)), ".weight_scale": ("U8", (out, inp // 32))}, {}, "mxfp8", 1),
        "mxfp4": ({".weight_packed": ("U8", (out, inp // 2)), ".weight_scale": ("U8", rows)}, {}, "mxfp4", 1),
        "mxfp4 in I8": ({".weight": ("I8", (out, inp // 2)), ".scale": ("F8_E8M0", (out, inp // 32))}, {}, "mxfp4", 1),
        "nvfp4": ({".weight": ("U8", (out, inp // 2)), ".weight_scale": ("F8_E4M3", (out, inp // 16)),
                   ".weight_scale_2": ("F32", ())}, {}, "nvfp4", 1),
        "F4": ({".weight": ("F4", (out, inp)), ".weight_scale": ("F8_E4M3", (out, inp // 16))}, {}, "nvfp4", 1),
        "int8": ({".weight": ("I8", (out, inp)), ".weight_scale": ("F32", (out, 1))}, {}, "int8", 1),
        "pack-quantized": ({".weight_packed": ("I32", (out, inp * bits // 32)), ".weight_scale": ("BF16", rows),
                            ".weight_shape": ("I64", (2,))}, ct, f"int{bits}", 1),
        "gptq": ({".qweight": ("I32", (inp * bits // 32, out)), ".scales": ("F16", (inp // 128, out)),
                  ".qzeros": ("I32", (inp // 128, out * bits // 32)), ".g_idx": ("I32", (inp,))}, {}, f"int{bits}", 0),
        "awq": ({".qweight": ("I32", (inp, out * bits // 32)), ".scales": ("F16", (inp // 128, out)),
                 ".qzeros": ("I32", (inp // 128, out * bits // 32))}, {}, f"int{bits}", 0),
    }  # fmt: skip


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 8), st.sampled_from([2, 4, 8]), st.sampled_from(sorted(layouts(256, 256, 4))))
def test_logical_parameters(rows: int, columns: int, bits: int, name: str) -> None:
    out, inp = 256 * rows, 256 * columns
    stored, config, scheme, axis = layouts(out, inp, bits)[name]
    parts = read(stored, config=config)
    weight = next(iter(parts.values()))
    assert weight.shape == (out, inp)
    assert (weight.family.scheme, weight.family.parameters) == (scheme, 2 * out * inp)
    assert (weight.family.split, weight.family.axis) == ("width", axis)
    assert sum(part.family.parameters for part in parts.values()) == 2 * out * inp
    for end, part in parts.items():
        if "scale" in end:
            assert part.family.scheme == scheme
            assert part.family.axis == (axis if len(part.family.shape) == 2 and part.family.shape[axis] > 1 else None)


def test_a_flat_column_of_pairs_with_quantised_scales() -> None:
    # bitsandbytes, nf4 with double quantisation: 64 values share an absmax, which is a byte itself
    stored: Stored = {".weight": ("U8", (256 * 128 // 2, 1)), ".weight.absmax": ("U8", (256 * 128 // 64,)),
                      ".weight.quant_map": ("F32", (16,)), ".weight.nested_absmax": ("F32", (2,))}
    weight = read(stored)[".weight"].family
    assert (weight.scheme, weight.parameters) == ("fp4", 2 * 256 * 128)


def test_three_bits_do_not_fill_a_word() -> None:
    stored: Stored = {".qweight": ("I32", (96, 512)), ".scales": ("F16", (8, 512)), ".qzeros": ("I32", (8, 48))}
    weight = read(stored)[".qweight"]
    assert (weight.shape, weight.family.scheme) == ((512, 1024), "int3")


def test_bits_that_nobody_states_are_not_guessed() -> None:
    stored: Stored = {".weight_packed": ("I32", (64, 8)), ".weight_scale": ("BF16", (64, 2))}
    assert read(stored)[".weight_packed"].family.scheme == "packed"


def test_the_group_size_tells_two_stated_widths_apart() -> None:
    config = {"a": {"weights": {"num_bits": 8, "group_size": 128}}, "b": {"weights": {"num_bits": 4, "group_size": 32}}}
    stored: Stored = {".weight_packed": ("I32", (64, 32)), ".weight_scale": ("BF16", (64, 8))}
    assert read(stored, config=config)[".weight_packed"].family.scheme == "int4"


def test_tables_of_indices_are_not_parameters() -> None:
    parts = read({".weight": ("I64", (100, 4))}, stem="model.layers.{L}.ffn.token_to_expert")
    assert parts[".weight"].family.parameters == 0


@pytest.mark.parametrize(("end", "dtype", "shape", "axis", "logical"), [
    ("", "BF16", (8, 96, 64), 1, (8, 96, 64)),                  # [experts, out, in]
    ("", "BF16", (8, 64, 96), 2, (8, 96, 64)),                  # [experts, in, out]
    ("_blocks", "U8", (8, 96, 2, 16), 1, (8, 96, 64)),          # [experts, out, blocks, bytes]
])  # fmt: skip
def test_stacked_experts(end: str, dtype: str, shape: tuple[int, ...], axis: int, logical: tuple[int, ...]) -> None:
    stored: Stored = {end: (dtype, shape), "_scales": ("U8", (8, 96, 2)), "_bias": ("BF16", (8, 96))}
    parts = read(stored, stem="model.layers.{L}.mlp.experts.gate_up_proj")
    weight, bias = parts[end], parts["_bias"]
    assert (weight.shape, weight.family.axis, weight.family.experts) == (logical, axis, 8)
    assert weight.family.parameters == 2 * 8 * 96 * 64
    assert (bias.family.axis, bias.family.experts) == (1, 8)


def test_a_square_down_projection_is_turned_like_its_gate() -> None:
    at = "model.layers.{L}.mlp.experts."
    groups = [TensorGroup(pattern=at + name, shape=shape, dtype="BF16", layer=Column([0]), expert=Column([-1]),
                          file=Column([-1]), start=Column([0]))
              for name, shape in (("gate_up_proj", (4, 64, 128)), ("down_proj", (4, 64, 64)))]  # fmt: skip
    for order in (groups, groups[::-1]):
        parts = parts_of(TensorTable(files=(), groups=tuple(order)), Dims(1, 64, 4, None))
        axes = {part.role.name: part.family.axis for part in parts}
        assert axes == {"experts.gate_up": 2, "experts.down": 1}


@settings(deadline=None)
@given(st.sampled_from(["BF16", "U8", "I8", "I32", "I64", "F8_E4M3", "F4", "BOOL"]),
       st.lists(st.integers(0, 5), max_size=4),
       st.sampled_from(["", ".weight", ".qweight", ".weight_packed", "_blocks"]),
       st.sampled_from(["BF16", "U8", "F8_E4M3", "F32"]), st.lists(st.integers(0, 5), max_size=4))  # fmt: skip
def test_no_shape_ends_in_a_traceback(dtype: str, shape: list[int], end: str, other: str, scale: list[int]) -> None:
    for stem in ("model.layers.{L}.mlp.down_proj", "model.layers.{L}.mlp.experts.gate_up_proj"):
        stored: Stored = {end: (dtype, tuple(shape)), ".weight_scale": (other, tuple(scale)),
                          ".qzeros": ("I32", tuple(scale))}  # fmt: skip
        parts = read(stored, stem=stem, config={"bits": 4})
        assert all(part.family.parameters >= 0 for part in parts.values())


@pytest.mark.parametrize(("dtype", "bits", "scheme"), [("F6_E2M3", None, "f6_e2m3"), ("F5_E2M2", 5, "f5_e2m2")])
def test_floats_that_no_format_names_hold_one_parameter_each(dtype: str, bits: int | None, scheme: str) -> None:
    group = TensorGroup(pattern="model.layers.{L}.mlp.down_proj.weight", shape=(32, 64), dtype=dtype, item_bits=bits,
                        layer=Column([0, 1]), expert=Column([-1, -1]), file=Column([-1, -1]), start=Column([0, 0]))
    [part] = parts_of(TensorTable(files=(), groups=(group,)), Dims(2, 64, 0, None))
    assert (part.family.scheme, part.family.parameters) == (scheme, 2 * 32 * 64)
    assert part.family.stored_bytes == 2 * 32 * 64 * (bits or 6) // 8


@pytest.mark.parametrize("axis", [-2, -1, 0, 1])
@pytest.mark.parametrize("stored", [(), (8,)])
def test_a_packed_weight_that_is_no_matrix_has_a_shape(stored: tuple[int, ...], axis: int) -> None:
    shape = quant.Stored("int4", Fraction(8), axis, transposed=True).shape(stored)
    assert shape == ((64,) if stored and axis in (-1, 0) else stored)
