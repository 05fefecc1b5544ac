"""Integers in words, [in, out], as GPTQ and AWQ publish them: written here number by number from their definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from dayzero.errors import NotPossible
from dayzero.runtime.loading import Checkpoint
from dayzero.runtime.loading.codes import dense, fields, padded

INPUTS, OUTPUTS = 256, 64
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The outputs of a word, from the lowest bits on."""
Tensors = dict[str, torch.Tensor]


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def stream(codes: list[int], bits: int) -> list[int]:
    """One long number, the first code in its lowest bits, in pieces of 32 bits."""
    number = sum(code << (bits * place) for place, code in enumerate(codes))
    return [_signed(number >> at & 0xFFFFFFFF) for at in range(0, bits * len(codes), 32)]


def _columns(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Words along the first axis."""
    return torch.tensor([stream(column, bits) for column in codes.T.tolist()], dtype=torch.int32).T.contiguous()


def _rows(codes: torch.Tensor, bits: int) -> torch.Tensor:
    return torch.tensor([stream(row, bits) for row in codes.tolist()], dtype=torch.int32)


def _some(*shape: int, most: int, seed: int) -> torch.Tensor:
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(seed))


def gptq(bits: int, group: int, *, sym: bool, order: bool, less: int = 1) -> tuple[Tensors, torch.Tensor]:
    """(tensors, values [out, in])."""
    groups, most = INPUTS // group, 1 << bits
    codes, scales = _some(INPUTS, OUTPUTS, most=most, seed=1), torch.rand(groups, OUTPUTS).half()
    zeros = torch.full((groups, OUTPUTS), most // 2) if sym else _some(groups, OUTPUTS, most=most - 1, seed=2) + 1
    own = torch.arange(INPUTS) // group
    if order:
        own = own[torch.randperm(INPUTS, generator=torch.Generator().manual_seed(3))]
    values = torch.empty(OUTPUTS, INPUTS)
    for inp in range(INPUTS):
        for out in range(OUTPUTS):
            code, zero = int(codes[inp, out]), int(zeros[own[inp], out])
            values[out, inp] = float(scales[own[inp], out]) * (code - zero)
    return {"qweight": _columns(codes, bits), "qzeros": _rows(zeros - less, bits), "scales": scales,
            "g_idx": own.int()}, values


def awq(group: int, *, sym: bool) -> tuple[Tensors, torch.Tensor]:
    """(tensors, values [out, in])."""
    groups = INPUTS // group
    codes, scales = _some(INPUTS, OUTPUTS, most=16, seed=4), torch.rand(groups, OUTPUTS).half()
    zeros = torch.full((groups, OUTPUTS), 8) if sym else _some(groups, OUTPUTS, most=16, seed=5)
    values = torch.empty(OUTPUTS, INPUTS)
    for inp in range(INPUTS):
        for out in range(OUTPUTS):
            values[out, inp] = float(scales[inp // group, out]) * (int(codes[inp, out]) - int(zeros[inp // group, out]))

    def packed(numbers: torch.Tensor) -> torch.Tensor:
        return _rows(numbers.view(len(numbers), -1, 8)[:, :, list(AWQ_ORDER)].flatten(1), 4)

    return {"qweight": packed(codes), "qzeros": packed(zeros), "scales": scales}, values


def opened(root: Path, tensors: Tensors, config: dict[str, Any], shape: tuple[int, int] = (OUTPUTS, INPUTS)
           ) -> Checkpoint:
    """A release of one linear layer."""
    save_file({f"proj.{name}": tensor for name, tensor in tensors.items()}, root / "model.safetensors")
    (root / "config.json").write_text(json.dumps({"quantization_config": config}))
    model = torch.nn.Module()
    model.proj = torch.nn.Linear(shape[1], shape[0], bias=False, device="meta")
    return Checkpoint(root, model)


def same_in_any_part(checkpoint: Checkpoint, values: torch.Tensor) -> None:
    """Whole, in rows and columns that begin anywhere."""
    assert checkpoint.check() == "" and checkpoint.unused == ()
    assert torch.equal(checkpoint.read({"proj.weight": {}})["proj.weight"], values)
    for rows in ((0, 32), (5, 6), (33, 64)):
        for columns in ((0, 256), (3, 5), (128, 256), (31, 97)):
            out = torch.empty(rows[1] - rows[0], columns[1] - columns[0])
            checkpoint.fill("proj.weight", {0: (rows,), 1: (columns,)}, out)
            assert torch.equal(out, values[slice(*rows), slice(*columns)]), (rows, columns)


@pytest.mark.parametrize("sym", [True, False])
@pytest.mark.parametrize(("bits", "group", "order"), [
    (4, 32, False), (4, 64, True), (4, 128, True), (4, 128, False), (8, 64, True), (2, 32, False),
    (3, 64, True)])  # fmt: skip
def test_gptq(bits: int, group: int, order: bool, sym: bool, tmp_path: Path) -> None:
    tensors, values = gptq(bits, group, sym=sym, order=order)
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": order, "sym": sym}
    checkpoint = opened(tmp_path, tensors, config)
    same_in_any_part(checkpoint, values)
    assert checkpoint.bytes("proj.weight") == sum(each.nbytes for name, each in tensors.items() if (
        name != "g_idx" or order))


@pytest.mark.parametrize(("key", "stated"), [("checkpoint_format", "gptq_v2"), ("packing_format", "auto_round")])
def test_gptq_whose_zero_points_are_stored_as_they_are(key: str, stated: str, tmp_path: Path) -> None:
    tensors, values = gptq(4, 32, sym=False, order=False, less=0)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, key: stated}
    same_in_any_part(opened(tmp_path, tensors, config), values)


def test_a_format_with_another_name_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """Planes of bits have the same shapes."""
    tensors, _ = gptq(4, 32, sym=False, order=False)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_p"}
    with pytest.raises(NotPossible, match="is a format that is not known"):
        opened(tmp_path, tensors, config).check()


def test_gptq_without_the_groups_of_inputs(tmp_path: Path) -> None:
    """Groups are neighbours then; the bits are those that the zero points show."""
    tensors, values = gptq(4, 64, sym=False, order=False)
    del tensors["g_idx"]
    same_in_any_part(opened(tmp_path, tensors, {"quant_method": "gptq", "group_size": 64}), values)


@pytest.mark.parametrize("sym", [True, False])
@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_awq(group: int, sym: bool, tmp_path: Path) -> None:
    tensors, values = awq(group, sym=sym)
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": not sym}
    same_in_any_part(opened(tmp_path, tensors, config), values)


def test_shapes_of_neither_are_refused_by_name(tmp_path: Path) -> None:
    tensors, _ = awq(64, sym=False)
    checkpoint = opened(tmp_path, {**tensors, "qzeros": tensors["qzeros"][:, :4].contiguous()}, {"bits": 4})
    with pytest.raises(NotPossible, match=r"proj.qweight .*is a format that is not known"):
        checkpoint.check()


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 8), st.integers(1, 70), st.booleans(), st.integers(0, 1 << 30))
def test_fields_are_what_was_packed(bits: int, count: int, close: bool, seed: int) -> None:
    """Along both axes, whether values go on from word to word or not."""
    count = -(-count // 32) * 32 if close else count
    codes = _some(3, count, most=1 << bits, seed=seed)
    if close:
        words, packings = _rows(codes, bits), (dense(bits), dense(bits, axis=0))
    else:
        each = 32 // bits
        words = torch.stack([torch.tensor(stream(part.tolist() + [0] * (each - len(part)), bits)[:1] * 1)
                             for row in codes for part in row.split(each)]).view(3, -1).int()
        packings = (padded(bits), padded(bits, axis=0))
    assert torch.equal(fields(words, packings[0])[:, :count], codes.int())
    assert torch.equal(fields(words.T.contiguous(), packings[1])[:count], codes.int().T)
