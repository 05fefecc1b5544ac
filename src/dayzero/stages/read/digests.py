"""SHA-256 of a release's files: streamed, several files at once, remembered by what the system says of a file.

What is finished is kept even when the rest is interrupted, so that the same call goes on from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dayzero.errors import ReleaseError, StoreError
from dayzero.progress import SILENT, Progress
from dayzero.schema import Release, from_json, to_json
from dayzero.schema.manifest import MANIFEST, Manifest, manifest_of, save_manifest
from dayzero.schema.store import write_atomic

from .folder import holds_data, inside, is_there, list_files, read_bounded, safe_name
from .headers import PREFIX, header_length
from .threads import Meter, each

CHUNK = 2**20
"""Bytes read at a time: few enough that they are still in the processor's cache when they are hashed."""
SAVE_EVERY = 5.0
"""Seconds of work that a killed process may lose."""
MANIFEST_LIMIT = 64 * 2**20


def cache_folder(cache: Path | None = None) -> Path:
    """`cache`, or dayzero's folder below $XDG_CACHE_HOME (~/.cache; a relative one counts for nothing, as its
    specification says). For a user without a home it is below the system's temporary folder."""
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    home = Path(os.path.expanduser("~"))
    home = home / ".cache" if home.is_absolute() else Path(tempfile.gettempdir(), f"dayzero-cache-{os.getuid()}")
    return cache or (stated if stated.is_absolute() else home) / "dayzero"


def read_manifest(root: Path) -> Manifest | None:
    """The folder's manifest; None when it has none. Raises ReleaseError, UnsafePathError."""
    if not is_there(root, MANIFEST):
        return None
    try:
        manifest = from_json(read_bounded(inside(root, MANIFEST), MANIFEST_LIMIT, MANIFEST), Manifest)
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


def file_digests(release: Release, progress: Progress = SILENT, cache: Path | None = None,
                 again: bool = False) -> dict[str, str]:
    """SHA-256 of a release's files by name: all that have a role and whose content is here (a hole is not); each from
    what is remembered where the file has not changed, unless `again`.

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
        if file.role == "other" or not path.is_file() or (
                file.role == "weights" and (holes or (file.name not in release.cut_shards and not _whole(path)))):
            continue
        paths[file.name] = path
    return digest_paths(paths, cache, progress, again)


def _whole(path: Path) -> bool:
    with path.open("rb") as file:
        length = header_length(file.read(PREFIX), path.stat().st_size, path.name)
    return holds_data(path, PREFIX + length)


def verify(release: Release) -> tuple[tuple[str, str, str], ...]:
    """(name, expected, actual) of every file whose digest is not the one that the hub or the manifest states."""
    return tuple((file.name, file.expected_sha256, file.sha256) for file in release.files
                 if file.sha256 and file.expected_sha256 and file.sha256 != file.expected_sha256)  # fmt: skip


class _Store:
    """The digests that are known already, by file and state; what is added is written down now and then."""

    def __init__(self, cache: Path | None) -> None:
        self.path = cache_folder(cache) / "digests.json"
        self.known = _load(self.path)
        self._new: dict[str, str] = {}
        self._lock = threading.Lock()
        self._saved = time.monotonic()

    def add(self, key: str, digest: str) -> None:
        """Remember a digest. Threads may call this."""
        with self._lock:
            self.known[key] = self._new[key] = digest
            if time.monotonic() - self._saved > SAVE_EVERY:
                self.save()

    def save(self) -> None:
        """Write down what is new, in place of what was known of the same files before."""
        if not self._new:
            return
        files = {_file_of(key) for key in self._new}
        kept = {key: digest for key, digest in _load(self.path).items() if _file_of(key) not in files}
        # Without the cache the next run is slower, nothing else: a full or read-only disk must not stop this one.
        with contextlib.suppress(StoreError):
            write_atomic(self.path, to_json(kept | self._new))
        self._saved = time.monotonic()


def digest_paths(paths: Mapping[str, Path], cache: Path | None, progress: Progress,
                 again: bool = False) -> dict[str, str]:
    """SHA-256 of each file: what is remembered where the file is as it was then (unless `again`), else as read now.

    Raises ReleaseError when a file cannot be read or changes meanwhile.
    """
    store = _Store(cache)
    keys = {name: file_state(path) for name, path in paths.items()}
    new = [name for name in paths if again or keys[name] not in store.known]
    meter = Meter("hashing files", sum(paths[name].stat().st_size for name in new), progress)

    def one(name: str) -> None:
        digest = _sha256(paths[name], meter)
        if file_state(paths[name]) != keys[name]:
            raise ReleaseError(f"{name} changed while it was read", "wait until it is complete, then try again")
        store.add(keys[name], digest)

    try:
        for _ in each(one, sorted(new, key=lambda name: -paths[name].stat().st_size), meter):
            pass
    finally:
        store.save()
    return {name: store.known[key] for name, key in keys.items()}


def remembered(paths: Mapping[str, Path], cache: Path | None = None) -> frozenset[str]:
    """Names of the files whose digest is known without reading them. Raises ReleaseError."""
    known = _load(cache_folder(cache) / "digests.json")
    return frozenset(name for name, path in paths.items() if file_state(path) in known)


_STATE = 5
"""Parts of a key after the path."""


def file_state(path: Path) -> str:
    """The file and its state: a write changes the time of change, which no program can set back as it can set the time
    of modification; a file put in its place has another number."""
    try:
        status = path.stat()
    except OSError as error:
        raise ReleaseError(f"cannot read {path}: {error.strerror}", "check the file") from None
    state = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino)
    return "|".join([str(path.resolve()), *map(str, state)])


def _file_of(key: str) -> str:
    return key.rsplit("|", _STATE)[0]


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
