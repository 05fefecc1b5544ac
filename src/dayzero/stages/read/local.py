"""A folder on disk becomes a `Release`: config, index, headers, files, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dayzero.progress import SILENT, Progress
from dayzero.runtime.store import url_of
from dayzero.schema import FileEntry, Release, TensorTable
from dayzero.schema.manifest import Manifest

from .digests import read_manifest
from .folder import blob_digest, holds_data, list_files, read_config, read_quantization, refuse_pickles, role
from .headers import CutShortError, Header, read_header, rows
from .index import Shards, find
from .kept import Kept, keep, load, place
from .names import Rows, table
from .spec import model_spec
from .threads import each


@dataclass(frozen=True, slots=True)
class Remote:
    """A file as a hub lists it."""

    url: str
    """Where it is served."""
    size: int | None
    """Bytes; None: not stated."""
    sha256: str | None
    """SHA-256 that the hub states, in hex; None: it states none."""


@dataclass(frozen=True, slots=True)
class _Shard:
    rows: Rows
    """Its tensors."""
    agrees: bool
    """The index gives each of them this file."""
    whole: bool
    """The data of all of them is there."""
    least: int = 0
    """Bytes that a file which ends within its header has at least; 0: it has its header."""


def read_folder(root: Path, *, name: str = "", origin: str = "", listing: Mapping[str, Remote] | None = None,
                cache: Path | None = None, again: bool = False, progress: Progress = SILENT) -> Release:
    """The release in the folder `root`, without digests of its files. `listing`: the files as the hub that it came from
    lists them. `cache`: where the tensors of large releases are kept; `again`: read them whatever is kept. Raises
    ReleaseError, UnsafePathError.
    """
    config, config_file = read_config(root)
    sizes = {file: status.st_size for file, status in list_files(root).items()}
    where = place(root, sizes, cache)
    kept = None if again else load(where)
    if kept:
        shards, agrees, cut = Shards(present=kept.tensors.files, missing=(), weight_map=None), True, dict[str, int]()
        tensors, whole = kept.tensors, kept.whole
    else:
        shards = find(root, sizes)
        tensors, agrees, whole, cut = _read_shards(root, shards, progress)
        if agrees and not shards.missing and not cut:
            keep(where, Kept(tensors=tensors, whole=whole))
    if not shards.present and not shards.missing:
        refuse_pickles(sizes)
    manifest, store = read_manifest(root), url_of(root)
    short, provenance = name or root.name, manifest.provenance if manifest else ""
    return Release(
        name=short, origin=origin or str(root), root=str(root), config=config, tensors=tensors,
        has_weights=whole and not store and not (manifest and manifest.headers_only), store=store,
        files=_files(root, sizes, shards, manifest, listing or {}),
        index=None if agrees else shards.weight_map, missing_shards=shards.missing, cut_shards=cut,
        model=model_spec(short, config, tensors, config_name=config_file, provenance=provenance,
                         quantization=read_quantization(root)),
    )  # fmt: skip


def _read_shards(root: Path, shards: Shards, progress: Progress) -> tuple[TensorTable, bool, bool, dict[str, int]]:
    """All headers -> (tensors, whether the index agrees with them, whether all their data is there, files that end
    within their header and the bytes that they have at least)."""

    def one(file: str) -> _Shard:
        path = root / file
        try:
            header = read_header(path, file)
        except CutShortError as error:
            nothing = rows(Header(name=file, size=0, data_start=0, entries={}))
            return _Shard(rows=nothing, agrees=True, whole=False, least=error.least)
        columns = rows(header)
        agrees = shards.weight_map is None or (
            [*map(shards.weight_map.get, header.entries)].count(file) == len(header.entries))  # fmt: skip
        whole = header.size == header.data_end and holds_data(path, header.data_start)
        return _Shard(rows=columns, agrees=agrees, whole=whole)

    found = []
    for shard in each(one, shards.present):
        found.append(shard)
        progress.update("reading headers", len(found), len(shards.present))
    tensors = table(shards.present, (shard.rows for shard in found))
    agrees = shards.weight_map is None or (
        tensors.count == len(shards.weight_map) and all(shard.agrees for shard in found))  # fmt: skip
    cut = {file: shard.least for file, shard in zip(shards.present, found, strict=True) if shard.least}
    return tensors, agrees, bool(found) and not shards.missing and all(shard.whole for shard in found), cut


def _files(root: Path, sizes: Mapping[str, int], shards: Shards, manifest: Manifest | None,
           listing: Mapping[str, Remote]) -> tuple[FileEntry, ...]:
    """Every file of the folder, and those that the hub has beside them."""
    stated = {file: what.sha256 for file, what in manifest.files.items()} if manifest else {}
    entries = {}
    for file, size in sizes.items():
        remote = listing.get(file)
        entries[file] = FileEntry(
            name=file, size=size, origin=remote.url if remote else str(root / file), role=role(file, shards.present),
            expected_sha256=(remote.sha256 if remote else None) or stated.get(file) or blob_digest(root / file))
    for file, remote in listing.items():
        if file not in entries and remote.size is not None:
            entries[file] = FileEntry(name=file, size=remote.size, origin=remote.url, role=role(file, shards.present),
                                      expected_sha256=remote.sha256)
    return tuple(entries[file] for file in sorted(entries))
