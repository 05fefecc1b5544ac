"""A release without weights on disk: config, index, and shards with real headers in front of holes.

The files have their full size and hardly take any room; whatever reads headers reads them like the published ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dayzero.schema import Release, TensorTable
from dayzero.schema.store import refuse_folder, staged_folder

from .card import read_card

SHARD_BYTES = 16 * 10**9
Entry = tuple[str, tuple[int, ...], str, int]
"""(name, shape, dtype, bytes) of a tensor."""


def write_release(source: Release | Path | str, folder: Path | str, *, shard_bytes: int = SHARD_BYTES) -> Path:
    """Write the release (or the one that a card describes) to `folder`, which must not exist or be empty, and not lie
    in the release. Nothing is left behind when that fails.

    Returns the folder. Shards are about `shard_bytes` long. Raises CardError, UsageError and StoreError.
    """
    release = source if isinstance(source, Release) else read_card(Path(source))
    root = Path(folder)
    refuse_folder(root, (release.root,))
    with staged_folder(root) as temporary:
        (temporary / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(release.config)) + b"\n")
        if release.tensors.count:
            _write_shards(temporary, release.tensors, shard_bytes)
    return root


def _write_shards(root: Path, tensors: TensorTable, shard_bytes: int) -> None:
    shards = list(_shards(tensors, shard_bytes))
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(root / name, shard)
        weight_map.update(dict.fromkeys((entry[0] for entry in shard), name))
    index = {"metadata": {"total_size": tensors.total_bytes}, "weight_map": weight_map}
    (root / "model.safetensors.index.json").write_bytes(json.dumps(index, indent=1).encode())


def _shards(tensors: TensorTable, shard_bytes: int) -> Iterator[list[Entry]]:
    """The tensors in the order of the table, cut where a shard is long enough."""
    shard: list[Entry] = []
    size = 0
    for group in tensors.groups:
        for row in range(group.count):
            if shard and size + group.tensor_bytes > shard_bytes:
                yield shard
                shard, size = [], 0
            shard.append((group.name(row), group.shape, group.dtype, group.tensor_bytes))
            size += group.tensor_bytes
    yield shard


def _write_shard(path: Path, shard: list[Entry]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape, dtype, size in shard:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
