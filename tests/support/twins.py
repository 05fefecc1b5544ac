"""Twins for tests: made from the shipped cards or from small releases in any format, and read back independently of
the code that wrote them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dayzero.schema.twin import Twin
from dayzero.stages.read import read
from dayzero.stages.twin import twin

CARDS = Path(__file__).parents[2] / "examples" / "cards"
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NUMPY = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I64": "<i8", "I32": "<i4", "I8": "i1", "U8": "u1", "BF16": "<u2",
         "F8_E4M3": "u1", "F8_E8M0": "u1", "BOOL": "u1"}  # fmt: skip
Stored = dict[str, tuple[str, np.ndarray[Any, Any]]]
"""Name -> (dtype, stored items)."""


def of_card(name: str, folder: Path, **options: Any) -> Twin:
    """The twin of a shipped card, such as `kimi-k3`; `options` are those of `twin`."""
    return twin(read(CARDS / f"{name}.toml"), folder, **options)


def stored(folder: Path) -> Stored:
    """Every tensor of a release folder."""
    found: Stored = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            items = np.frombuffer(data[start + first : start + last], NUMPY[entry["dtype"]])
            found[name] = entry["dtype"], items.reshape(entry["shape"])
    return found


def numbers(dtype: str, items: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 of stored items of a plain dtype."""
    if dtype == "BF16":
        return (items.astype(np.uint32) << 16).view(np.float32)
    if dtype == "F8_E8M0":
        return np.exp2(items.astype(np.float32) - 127)
    return _e4m3()[items] if dtype == "F8_E4M3" else items.astype(np.float32)


@cache
def _e4m3() -> np.ndarray[Any, Any]:
    """By the definition (arXiv:2209.05433): sign, four bits of exponent of bias 7, three of mantissa; 0x7F: NaN."""
    values = []
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        values.append(float("nan") if code & 0x7F == 0x7F else -size if code & 0x80 else size)
    return np.array(values, np.float32)


def matrices(tensors: Stored) -> dict[str, np.ndarray[Any, Any]]:
    """Every weight by its module's name, dequantised as engines do it; [..., out, in] as stored or packed."""
    made = {}
    for name, (dtype, items) in tensors.items():
        for end, decode in ENDS.items():
            module = name.removesuffix(end)
            if module != name:
                made[module] = decode(module, dtype, items, tensors)
                break
        else:
            if not name.endswith(COMPANIONS):
                made[name] = numbers(dtype, items)
    return made


def _wide(scale: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """One scale for each value: blocks of the power of two that gives as many."""
    if scale.size == 1:
        return scale.reshape(())
    if scale.ndim < len(shape):
        scale = scale.reshape(*scale.shape, *[1] * (len(shape) - scale.ndim))
    for axis, (count, size) in enumerate(zip(scale.shape, shape, strict=True)):
        block = 1 if count == size else size if count == 1 else 1 << (-(-size // count) - 1).bit_length()
        scale = np.repeat(scale, block, axis=axis)[(slice(None),) * axis + (slice(size),)]
    return scale


def _pairs(items: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """4-bit floats, the first of a byte in its low half."""
    codes = np.stack([items & 15, items >> 4], -1).reshape(*items.shape[:-1], -1)
    return np.array([*FP4, *(-level for level in FP4)], np.float32)[codes]


def _fields(items: np.ndarray[Any, Any], bits: int, axis: int) -> np.ndarray[Any, Any]:
    """Unsigned integers of words, the first in the lowest bits."""
    moved = np.moveaxis(items, axis, -1).astype(np.int64) & 0xFFFFFFFF
    codes = np.stack([moved >> (bits * place) & (2**bits - 1) for place in range(32 // bits)], -1)
    return np.moveaxis(codes.reshape(*moved.shape[:-1], -1), -1, axis)


def _floats(module: str, dtype: str, items: np.ndarray[Any, Any], tensors: Stored) -> np.ndarray[Any, Any]:
    """`.weight`: plain, 8-bit with scales, or NVFP4 pairs."""
    scale = tensors.get(module + ".weight_scale_inv") or tensors.get(module + ".weight_scale")
    if scale is None:
        return numbers(dtype, items)
    values = _pairs(items) if dtype == "U8" else numbers(dtype, items)
    factor = numbers("F8_E8M0" if scale[0] == "U8" else scale[0], scale[1])
    if module + ".weight_scale_2" in tensors:
        factor = factor * tensors[module + ".weight_scale_2"][1]
    return values * _wide(factor, values.shape)


def _packed(module: str, dtype: str, items: np.ndarray[Any, Any], tensors: Stored) -> np.ndarray[Any, Any]:
    """`.weight_packed`: MX or NVFP4 pairs, or integers whose middle is zero."""
    scale_dtype, scale = tensors[module + ".weight_scale"]
    if dtype == "U8":
        values = _pairs(items)
        overall = tensors.get(module + ".weight_global_scale")
        factor = numbers("F8_E8M0" if scale_dtype == "U8" else scale_dtype, scale)
        return values * _wide(factor if overall is None else factor / overall[1], values.shape)
    rows, columns = tensors[module + ".weight_shape"][1].tolist()
    values = _fields(items, 32 * items.shape[1] // columns, 1)[:, :columns].astype(np.float32)
    middle = 2 ** (32 * items.shape[1] // columns - 1)
    return (values - middle) * _wide(numbers(scale_dtype, scale), (rows, columns))


def _blocks(module: str, _dtype: str, items: np.ndarray[Any, Any], tensors: Stored) -> np.ndarray[Any, Any]:
    """`_blocks`: stacked experts in MXFP4."""
    scale = tensors[module + "_scales"][1]
    values = _pairs(items) * np.exp2(scale.astype(np.float32) - 127)[..., None]
    return values.reshape(*values.shape[:-2], -1)


def _turned(module: str, _dtype: str, items: np.ndarray[Any, Any], tensors: Stored) -> np.ndarray[Any, Any]:
    """`.qweight`: 4-bit integers of [in, out], along the rows (GPTQ, zero points stored less one) or the columns (AWQ,
    in the order 0 2 4 6 1 3 5 7)."""
    scale, zeros = tensors[module + ".scales"][1].astype(np.float32), _fields(tensors[module + ".qzeros"][1], 4, 1)
    if items.shape[1] == scale.shape[1]:
        codes, zeros = _fields(items, 4, 0), zeros + 1
    else:
        order = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])
        codes = _fields(items, 4, 1).reshape(len(items), -1, 8)[..., order].reshape(len(items), -1)
        zeros = zeros.reshape(len(zeros), -1, 8)[..., order].reshape(len(zeros), -1)
    group = codes.shape[0] // scale.shape[0]
    return ((codes - np.repeat(zeros, group, 0)) * np.repeat(scale, group, 0)).T


ENDS = {".weight": _floats, ".weight_packed": _packed, "_blocks": _blocks, ".qweight": _turned}
COMPANIONS = (".weight_scale_inv", ".weight_scale", ".weight_scale_2", ".weight_global_scale", ".weight_shape",
              "_scales", ".scales", ".qzeros", ".g_idx", ".input_scale", ".input_global_scale")  # fmt: skip


def plain(folder: Path, out: Path) -> Path:
    """A copy of a twin in bf16, without quantisation: what a runtime that reads no other formats can run."""
    out.mkdir()
    for path in folder.iterdir():
        if path.suffix not in (".safetensors", ".json") or path.name.startswith(("tokenizer", "generation")):
            (out / path.name).write_bytes(path.read_bytes())
    config = _unquantised(json.loads((folder / "config.json").read_text()))
    (out / "config.json").write_text(json.dumps(config))
    tensors = stored(folder)
    header: dict[str, Any] = {}
    data = b""
    for name, values in matrices(tensors).items():
        whole = name if name in tensors else f"{name}.weight"
        if whole not in tensors and f"{name}_blocks" in tensors:  # stacked; the library has them as [.., in, out]
            whole, values = name, np.swapaxes(values, -1, -2)
        kept = tensors[whole][0] == "F32" if whole in tensors else False
        items = np.ascontiguousarray(values, np.float32)
        raw = items.tobytes() if kept else ((items.view(np.uint32) + 0x8000) >> 16).astype("<u2").tobytes()
        header[whole] = {"dtype": "F32" if kept else "BF16", "shape": items.shape,
                         "data_offsets": [len(data), len(data) + len(raw)]}  # fmt: skip
        data += raw
    text = json.dumps(header).encode()
    (out / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return out


def _unquantised(config: dict[str, Any]) -> dict[str, Any]:
    return {key: _unquantised(value) if isinstance(value, dict) else value for key, value in config.items()
            if key not in ("quantization_config", "auto_map")}  # fmt: skip
