"""SHA-256 of a release's files: streamed, several files at once, remembered by path, size and time of change."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dayzero.errors import ReleaseError, StoreError
from dayzero.progress import SILENT, Progress
from dayzero.schema import Release, from_json, to_json
from dayzero.schema.manifest import MANIFEST, Manifest, manifest_of, save_manifest
from dayzero.schema.store import write_atomic

from .folder import holds_data, inside, list_files, read_bounded, safe_name
from .headers import PREFIX, header_length
from .threads import Meter, each

CHUNK = 8 * 2**20
"""Bytes read at a time."""
MANIFEST_LIMIT = 64 * 2**20


def cache_folder(cache: Path | None = None) -> Path:
    """`cache`, or dayzero's folder below $XDG_CACHE_HOME (~/.cache)."""
    return cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dayzero"


def read_manifest(root: Path) -> Manifest | None:
    """The folder's manifest; None when it has none. Raises ReleaseError, UnsafePathError."""
    path = inside(root, MANIFEST)
    if not path.exists():
        return None
    try:
        manifest = from_json(read_bounded(path, MANIFEST_LIMIT, MANIFEST), Manifest)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ReleaseError(f"{MANIFEST} is damaged: {error}"[:300], "remove it; it is then not compared") from None
    for name in manifest.files:
        safe_name(name)
    return manifest


def write_manifest(folder: Path, provenance: str = "", progress: Progress = SILENT) -> Path:
    """Write down size and SHA-256 of every file of `folder`, and how they came to be; where it is written.

    Raises ReleaseError, StoreError.
    """
    paths = {name: folder / name for name in list_files(folder) if name != MANIFEST}
    return save_manifest(folder, manifest_of(folder, digest_paths(paths, None, progress), provenance))


def file_digests(release: Release, progress: Progress = SILENT, cache: Path | None = None) -> dict[str, str]:
    """SHA-256 of a release's files by name: all that have a role and whose content is here (a hole is not).

    Raises ReleaseError when a file cannot be read or changes meanwhile.
    """
    if release.root is None:
        return {}
    root = Path(release.root)
    manifest = read_manifest(root)
    holes = manifest is not None and manifest.headers_only
    paths = {}
    for file in release.files:
        path = inside(root, file.name)
        if file.role == "other" or not path.is_file() or (file.role == "weights" and (holes or not _whole(path))):
            continue
        paths[file.name] = path
    return digest_paths(paths, cache, progress)


def _whole(path: Path) -> bool:
    with path.open("rb") as file:
        length = header_length(file.read(PREFIX), path.stat().st_size, path.name)
    return holds_data(path, PREFIX + length)


def verify(release: Release) -> tuple[tuple[str, str, str], ...]:
    """(name, expected, actual) of every file whose digest is not the one that the hub or the manifest states."""
    return tuple((file.name, file.expected_sha256, file.sha256) for file in release.files
                 if file.sha256 and file.expected_sha256 and file.sha256 != file.expected_sha256)  # fmt: skip


def digest_paths(paths: Mapping[str, Path], cache: Path | None, progress: Progress) -> dict[str, str]:
    """SHA-256 of each file, from the cache where its size and time of change are the same."""
    store = cache_folder(cache) / "digests.json"
    known = _load(store)
    keys = {name: _key(path) for name, path in paths.items()}
    new = {name: path for name, path in paths.items() if keys[name] not in known}
    meter = Meter("hashing files", sum(path.stat().st_size for path in new.values()), progress)
    for name, digest in zip(new, each(lambda path: _sha256(path, meter), new.values(), meter), strict=True):
        if _key(paths[name]) != keys[name]:
            raise ReleaseError(f"{name} changed while it was read", "wait until it is complete, then try again")
        known[keys[name]] = digest
    if new:
        # Without the cache the next run is slower, nothing else: a full or read-only disk must not stop this one.
        with contextlib.suppress(StoreError):
            write_atomic(store, to_json(_load(store) | known))
    return {name: known[key] for name, key in keys.items()}


def _key(path: Path) -> str:
    try:
        status = path.stat()
    except OSError as error:
        raise ReleaseError(f"cannot read {path}: {error.strerror}", "check the file") from None
    return f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}"


def _load(store: Path) -> dict[str, str]:
    """The cache; empty when there is none or it is damaged (it is then made again)."""
    try:
        return from_json(store.read_bytes(), dict[str, str])
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
        return {}


def _sha256(path: Path, meter: Meter) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            buffer = bytearray(CHUNK)
            view = memoryview(buffer)
            while count := file.readinto(buffer):
                digest.update(view[:count])
                meter.add(count)
    except OSError as error:
        raise ReleaseError(f"cannot read {path}: {error.strerror}", "check the file and the disk") from None
    return digest.hexdigest()
