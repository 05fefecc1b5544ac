"""A safetensors release whose tensors have given values."""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path

import numpy as np

Tensors = dict[str, tuple[str, tuple[int, ...], bytes | None]]
"""Name -> dtype, shape and data; None: a hole."""
ITEM = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I32": 4}


def f32(values: object) -> bytes:
    """Bytes of 32-bit floats."""
    return np.asarray(values, "<f4").tobytes()


def bf16(values: object) -> bytes:
    """Bytes of brain floats (cut off, not rounded)."""
    return (np.asarray(values, "<f4").view("<u4") >> 16).astype("<u2").tobytes()


def write(folder: Path, tensors: Tensors, config: dict[str, object]) -> Path:
    """One file with all of them, in order; its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, (dtype, shape, _) in tensors.items():
        end = at + prod(shape) * ITEM[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        start = file.tell()
        file.truncate(start + at)
        for name, (_, _, data) in tensors.items():
            if data is not None:
                file.seek(start + header[name]["data_offsets"][0])
                file.write(data)
    return folder
