"""Writes a twin's tensors: shards named like the original's, and the index."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from dayzero.progress import Progress
from dayzero.schema import Release
from dayzero.schema.release import ITEM_BITS

from .floats import Array, to_plain
from .modules import Kind, Module, is_table
from .values import kind_of, matrix, table, vector

INDEX = "model.safetensors.index.json"
SHARDS = 3
"""Files of a twin whose original has none."""
_USUAL, _ALONE = "model-00001-of-00001.safetensors", "model.safetensors"
"""Names of the files of a twin whose original has none: one of several, which an index lists; and the only one."""
_NUMBERED = re.compile(r"(\d+)(-of-)(\d+)")


@dataclass(frozen=True)
class Tensor:
    """One tensor of the twin."""

    name: str
    end: str
    module: Module
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return (prod(self.shape) * ITEM_BITS[self.dtype] + 7) // 8


class Values:
    """Makes the values of modules. What a module has in a later file is kept until then."""

    def __init__(self, numbers: Mapping[str, int], seed: int) -> None:
        self._numbers = numbers
        self._seed = seed
        self._waiting: dict[str, dict[str, Array]] = {}
        self._shapes: dict[int, tuple[Kind, dict[str, tuple[int, ...]]]] = {}

    def shapes(self, kind: Kind) -> dict[str, tuple[int, ...]]:
        """Stored shapes of the parts of a module."""
        return self._shapes.setdefault(id(kind), (kind, kind.shapes(self._numbers)))[1]

    def of(self, tensor: Tensor) -> Array:
        """Stored items of a tensor; each can be asked for once."""
        parts = self._waiting.get(tensor.module.name)
        if parts is None:
            parts = self._waiting[tensor.module.name] = self._made(tensor.module)
        items = parts.pop(tensor.end)
        if not parts:
            del self._waiting[tensor.module.name]
        return items

    def _made(self, module: Module) -> dict[str, Array]:
        kind, shapes = module.kind, self.shapes(module.kind)
        made: dict[str, Array] = {}
        if kind.storage is not None:
            shape = kind.logical(self._numbers)
            if is_table(kind.storage.weight.dtype) and len(kind.storage.parts) == 1:
                values = table(self._seed, module.name, shape, self._numbers.get("experts", 0))
                made[kind.storage.owner] = to_plain(values, kind.storage.weight.dtype)
            else:
                made = kind.storage.encode(matrix(self._seed, module.name, shape, kind.fan_in(shape)))
        for end in kind.others:
            name, dtype = f"{module.name}{end}", kind.parts[end].dtype
            if is_table(dtype):
                made[end] = to_plain(table(self._seed, name, shapes[end], 0), dtype)
            else:
                made[end] = to_plain(vector(self._seed, name, shapes[end], kind_of(name)), dtype)
        return made


def tensors_of(modules: list[Module], values: Values) -> dict[int, list[Tensor]]:
    """The tensors, by the original's file. Those of no file are cut in a few of about the same length."""
    made = [(module.files.get(end, -1),
             Tensor(f"{module.name}{end}", end, module, part.dtype, values.shapes(module.kind)[end]))
            for module in modules for end, part in module.kind.parts.items()]  # fmt: skip
    files: dict[int, list[Tensor]] = defaultdict(list)
    without = sum(tensor.size for file, tensor in made if file < 0)
    done = 0
    for file, tensor in made:
        files[file if file >= 0 else -1 - min(SHARDS - 1, SHARDS * done // max(1, without))].append(tensor)
        done += tensor.size if file < 0 else 0
    return dict(sorted(files.items(), key=lambda item: (item[0] < 0, abs(item[0]))))


def file_names(release: Release, files: list[int]) -> dict[int, str]:
    """Name of each file of the twin: the original's with other numbers."""
    usual = _USUAL if len(files) > 1 else _ALONE
    old = {file: release.tensors.files[file] if file >= 0 else usual for file in files}
    return {file: _numbered(old[file], at, len(files)) for at, file in enumerate(files, 1)}


def _numbered(name: str, number: int, count: int) -> str:
    """A shard's name with other numbers of as many digits; another name as it is."""
    return _NUMBERED.sub(lambda match: f"{number:0{len(match[1])}d}{match[2]}{count:0{len(match[3])}d}", name)


def write_tensors(folder: Path, files: dict[int, list[Tensor]], names: Mapping[int, str], values: Values, index: str,
                  progress: Progress) -> int:
    """Write every shard and the index; returns the bytes of all tensors."""
    weight_map: dict[str, str] = {}
    total = 0
    for at, (file, tensors) in enumerate(files.items()):
        progress.update(f"writing {names[file]}", at, len(files))
        _shard(folder / names[file], tensors, values)
        weight_map.update(dict.fromkeys((tensor.name for tensor in tensors), names[file]))
        total += sum(tensor.size for tensor in tensors)
    if len(files) > 1:
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}, indent=2)
        (folder / index).write_text(text + "\n")
    return total


def _shard(path: Path, tensors: list[Tensor], values: Values) -> None:
    """One safetensors file: the length of the header, the header, the data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.size
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            data = np.ascontiguousarray(values.of(tensor)).data.cast("B") if tensor.size else b""
            if len(data) != tensor.size:
                raise RuntimeError(f"{tensor.name}: {len(data)} bytes were made, not {tensor.size}")
            file.write(data)
