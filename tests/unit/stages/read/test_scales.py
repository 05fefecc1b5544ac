"""How many values share a scale: by hand, and on the layouts of the quantised checkpoints that exist."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.schema import Column, TensorGroup, TensorTable
from dayzero.stages.read.families import Dims, parts_of
from dayzero.stages.read.scales import block_size, stated_sizes

AT = "model.layers.{L}.mlp."


@given(extent=st.integers(2, 20_000), size=st.integers(1, 9).map(lambda exponent: 2**exponent))
def test_powers_of_two_are_found_from_shapes_alone(extent: int, size: int) -> None:
    scales = -(-extent // size)
    assert block_size(extent, scales, None) == (size if scales > 1 else 1)


@given(extent=st.integers(2, 20_000), size=st.integers(2, 500))
def test_what_the_config_states_counts_if_it_gives_as_many_scales(extent: int, size: int) -> None:
    scales = -(-extent // size)
    assert block_size(extent, scales, {"group_size": size}) == min(size, extent)
    found = block_size(extent, scales, {"group_size": 20_001})
    assert scales == 1 or -(-extent // found) == scales


@pytest.mark.parametrize(("extent", "scales", "size"), [
    (192, 2, 128), (200, 2, 128), (1000, 8, 128), (2880, 90, 32), (768, 768, 1), (768, 1, 1), (480, 5, 96)])
def test_by_hand(extent: int, scales: int, size: int) -> None:
    stated = {"group_size": 96} if size == 96 else None
    assert block_size(extent, scales, stated) == size


def test_only_sizes_of_weights_are_read_from_the_config() -> None:
    groups = {"g": {"weights": {"group_size": 32, "block_structure": None}, "input_activations": {"group_size": 64}}}
    config = {"config_groups": groups, "kv_cache_scheme": {"group_size": 16}, "group_size": -1,
              "weight_block_size": [1, 128]}
    assert list(stated_sizes(config)) == [32, 128]


def blocks(tensors: dict[str, tuple[tuple[int, ...], str]], config: dict[str, Any] | None = None) -> dict[str, int]:
    groups = tuple(TensorGroup(pattern=AT + name, shape=shape, dtype=dtype, layer=Column([0]), expert=Column([-1]),
                               file=Column([-1]), start=Column([0])) for name, (shape, dtype) in tensors.items())
    parts = parts_of(TensorTable(files=(), groups=groups), Dims(1, 2880, 32, config))
    return {part.family.pattern.removeprefix(AT): part.family.block for part in parts if part.is_weight}


@pytest.mark.parametrize(("scale", "dtype"), [((2048, 1), "F8_E4M3"), ((2048, 1), "I8"), ((2048,), "F8_E4M3")])
def test_a_scale_for_each_row_separates_nothing(scale: tuple[int, ...], dtype: str) -> None:
    for name, shape in (("up_proj", (2048, 1024)), ("down_proj", (2048, 8192))):
        assert blocks({f"{name}.weight": (shape, dtype), f"{name}.weight_scale": (scale, "F32")}) == {
            f"{name}.weight": 1}


def test_square_blocks_with_a_part_of_one() -> None:
    found = blocks({"up_proj.weight": ((1000, 512), "F8_E4M3"), "up_proj.weight_scale_inv": ((8, 4), "F32"),
                    "down_proj.weight": ((512, 200), "F8_E4M3"), "down_proj.weight_scale_inv": ((4, 2), "F32")})
    assert found == {"up_proj.weight": 128, "down_proj.weight": 128}


@pytest.mark.parametrize("down", [
    {"down_proj.qweight": ((64, 4096), "I32"), "down_proj.scales": ((4, 4096), "F16"),
     "down_proj.qzeros": ((4, 512), "I32")},  # packed along in
    {"down_proj.qweight": ((512, 512), "I32"), "down_proj.scales": ((4, 4096), "F16"),
     "down_proj.qzeros": ((4, 512), "I32")},  # packed along out
    {"down_proj.weight_packed": ((4096, 64), "I32"), "down_proj.weight_scale": ((4096, 4), "BF16")}])
def test_groups_of_packed_integers(down: dict[str, tuple[tuple[int, ...], str]]) -> None:
    config = {"quant_method": "any", "bits": 4, "group_size": 128}
    assert list(blocks(down, config).values()) == [128]


def test_scales_of_stacked_experts_belong_to_their_own_matrix() -> None:
    # gpt-oss-20b: 32 experts, width and hidden size 2880 = 90 blocks of 32 values in 16 bytes
    found = blocks({
        "experts.gate_up_proj_blocks": ((32, 5760, 90, 16), "U8"),
        "experts.gate_up_proj_scales": ((32, 5760, 90), "U8"),
        "experts.down_proj_blocks": ((32, 2880, 90, 16), "U8"), "experts.down_proj_scales": ((32, 2880, 90), "U8")})
    assert found == {"experts.gate_up_proj_blocks": 1, "experts.down_proj_blocks": 32}
    # the same matrices, one with scales for blocks of 64 x 64 and one with a scale for each row
    found = blocks({
        "experts.gate_up_proj": ((32, 5760, 2880), "F8_E4M3"), "experts.gate_up_proj_scale": ((32, 90, 45), "F32"),
        "experts.down_proj": ((32, 2880, 2880), "F8_E4M3"), "experts.down_proj_scale": ((32, 2880, 1), "F32")})
    assert found == {"experts.gate_up_proj": 64, "experts.down_proj": 1}
