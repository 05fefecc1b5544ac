"""Quantised matrices, each made here number by number, read whole and in parts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dayzero.errors import NotPossible
from dayzero.runtime.loading import Checkpoint

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""OCP Microscaling Formats (MX) 1.0, table of E2M1."""
Made = tuple[dict[str, torch.Tensor], torch.Tensor, dict[str, Any]]


def _bytes(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def _float8(*shape: int) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 10).to(torch.float8_e4m3fn)


def _each(shape: tuple[int, ...], value: Callable[..., float]) -> torch.Tensor:
    made = torch.empty(shape)
    for place in itertools.product(*map(range, shape)):
        made[place] = value(*place)
    return made


def _fp4(code: int) -> float:
    return -FP4[code & 7] if code & 8 else FP4[code & 7]


def _pair(data: torch.Tensor, row: tuple[int, ...], column: int) -> float:
    byte = int(data[(*row, column // 2)])
    return _fp4(byte >> 4 if column % 2 else byte & 15)


def fp8_blocks() -> Made:
    """Blocks of 4 x 4 that the matrix is no multiple of."""
    weight, scale = _float8(10, 7), torch.rand(3, 2)
    values = _each((10, 7), lambda i, j: float(weight[i, j]) * float(scale[i // 4, j // 4]))
    return ({"weight": weight, "weight_scale_inv": scale}, values,
            {"quant_method": "fp8", "weight_block_size": [4, 4]})


def fp8_rows() -> Made:
    weight, scale = _float8(6, 8), torch.rand(6, 1)
    return ({"weight": weight, "weight_scale": scale, "input_scale": torch.ones(1)},
            _each((6, 8), lambda i, j: float(weight[i, j]) * float(scale[i, 0])), {"quant_method": "fp8"})


def fp8_whole() -> Made:
    weight, scale = _float8(6, 8), torch.tensor(0.375)
    return ({"weight": weight, "weight_scale": scale}, weight.float() * 0.375, {"quant_method": "fp8"})


def mxfp4() -> Made:
    weight, scale = _bytes(4, 32), _bytes(4, 2, seed=3) % 8 + 123
    values = _each((4, 64), lambda i, j: _pair(weight, (i,), j) * 2.0 ** (int(scale[i, j // 32]) - 127))
    return {"weight_packed": weight, "weight_scale": scale}, values, {"quant_method": "compressed-tensors"}


def nvfp4_divided() -> Made:
    """compressed-tensors: the scale of all divides."""
    weight, scale, overall = _bytes(4, 16), torch.rand(4, 2).to(torch.float8_e4m3fn), torch.tensor([3.0])
    values = _each((4, 32), lambda i, j: _pair(weight, (i,), j) * float(scale[i, j // 16].float() / 3.0))
    return ({"weight_packed": weight, "weight_scale": scale, "weight_global_scale": overall}, values,
            {"quant_method": "compressed-tensors"})


def nvfp4_multiplied() -> Made:
    """modelopt: the second scale multiplies."""
    weight, scale, overall = _bytes(4, 16), torch.rand(4, 2).to(torch.float8_e4m3fn), torch.tensor(0.25)
    values = _each((4, 32), lambda i, j: _pair(weight, (i,), j) * float(scale[i, j // 16].float()) * 0.25)
    return ({"weight": weight, "weight_scale": scale, "weight_scale_2": overall, "input_scale": torch.tensor(1.0)},
            values, {"quant_algo": "NVFP4"})


def _words(codes: torch.Tensor) -> torch.Tensor:
    """Eight codes in each 32-bit word along the last axis, the first in the lowest bits."""
    packed = [sum(int(code) << (4 * place) for place, code in enumerate(group)) for group in codes.reshape(-1, 8)]
    return torch.tensor([value - (1 << 32) if value >= 1 << 31 else value for value in packed],
                        dtype=torch.int32).reshape(*codes.shape[:-1], -1)  # fmt: skip


CONFIG4 = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 32}}}}


def int4() -> Made:
    """A row of 60 in words of 8 values: the last one is not full."""
    codes, scale = _bytes(4, 64) % 16, torch.rand(4, 2).bfloat16()
    values = _each((4, 60), lambda i, j: (int(codes[i, j]) - 8) * float(scale[i, j // 32]))
    return ({"weight_packed": _words(codes), "weight_scale": scale, "weight_shape": torch.tensor([4, 60])}, values,
            CONFIG4)


def int4_with_zeros() -> Made:
    codes, zeros, scale = _bytes(8, 64) % 16, _bytes(8, 2, seed=5) % 16, torch.rand(8, 2).bfloat16()
    values = _each((8, 64), lambda i, j: (int(codes[i, j]) - int(zeros[i, j // 32])) * float(scale[i, j // 32]))
    return ({"weight_packed": _words(codes), "weight_scale": scale, "weight_shape": torch.tensor([8, 64]),
             "weight_zero_point": _words(zeros.T.contiguous()).T.contiguous()}, values, CONFIG4)


def int8() -> Made:
    weight, scale = _bytes(6, 8).view(torch.int8), torch.rand(6, 1)
    return ({"weight": weight, "weight_scale": scale},
            _each((6, 8), lambda i, j: int(weight[i, j]) * float(scale[i, 0])), {"quant_method": "compressed-tensors"})


class Model(torch.nn.Module):
    """One matrix."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.part = torch.nn.Module()
        self.part.weight = torch.nn.Parameter(torch.empty(shape, device="meta"))


def _write(root: Path, made: Made) -> Checkpoint:
    tensors, values, config = made
    save_file({f"part.{name}": tensor for name, tensor in tensors.items()}, root / "model.safetensors")
    (root / "config.json").write_text(json.dumps({"text_config": {"quantization_config": config}}))
    return Checkpoint(root, Model(tuple(values.shape)))


@pytest.mark.parametrize("make", [fp8_blocks, fp8_rows, fp8_whole, mxfp4, nvfp4_divided, nvfp4_multiplied, int4,
                                  int4_with_zeros, int8], ids=lambda make: make.__name__)  # fmt: skip
def test_values_are_dequantised_whole_and_in_parts(make: Callable[[], Made], tmp_path: Path) -> None:
    made = make()
    checkpoint, values = _write(tmp_path, made), made[1]
    assert checkpoint.check() == "" and checkpoint.unused == () and checkpoint.missing == ()
    assert torch.equal(checkpoint.read({"part.weight": {}})["part.weight"], values)
    half = checkpoint.read({"part.weight": {}}, dtype=torch.bfloat16)["part.weight"]
    assert torch.equal(half, values.bfloat16())
    rows, columns = values.shape
    for first, last in ((0, 1), (1, rows), (rows // 2, rows)):
        for begin, end in ((0, columns), (columns // 2, columns), (3, 5), (0, 1)):
            out = torch.empty(last - first, end - begin)
            checkpoint.fill("part.weight", {0: ((first, last),), 1: ((begin, end),)}, out)
            assert torch.equal(out, values[first:last, begin:end])
    assert checkpoint.bytes("part.weight") < values.numel() * 4


def test_experts_packed_out_in_are_turned_where_the_module_says_so(tmp_path: Path) -> None:
    """Also where both are as wide, when the shapes do not tell."""
    blocks, scales = _bytes(3, 64, 2, 16), _bytes(3, 64, 2, seed=3) % 8 + 123
    save_file({"experts.proj_blocks": blocks, "experts.proj_scales": scales}, tmp_path / "model.safetensors")
    flat = blocks.flatten(2)
    values = _each((3, 64, 64), lambda e, i, j: _pair(flat, (e, i), j) * 2.0 ** (int(scales[e, i, j // 32]) - 127))
    model = torch.nn.Module()
    model.experts = torch.nn.Module()
    model.experts.proj = torch.nn.Parameter(torch.empty(3, 64, 64, device="meta"))
    assert torch.equal(Checkpoint(tmp_path, model).read({"experts.proj": {}})["experts.proj"], values)
    model.experts.is_transposed = True
    out = torch.empty(1, 20, 64)
    Checkpoint(tmp_path, model).fill("experts.proj", {0: ((1, 2),), 1: ((5, 25),)}, out)
    assert torch.equal(out[0], values[1, :, 5:25].T)


def test_a_format_that_is_not_known_is_refused_when_it_is_wanted(tmp_path: Path) -> None:
    """Words of neither layout: along the inputs in tiles, as kernels want them."""
    made = ({"qweight": torch.zeros(4, 128, dtype=torch.int32), "scales": torch.ones(2, 64),
             "qzeros": torch.zeros(2, 8, dtype=torch.int32)}, torch.zeros(64, 64), {"bits": 4, "group_size": 32})
    checkpoint = _write(tmp_path, made)
    with pytest.raises(NotPossible, match=r"packed_transposed I32 \[4, 128\] with scales F32 \[2, 64\] is a format"):
        checkpoint.read({"part.weight": {}})
