"""An object store as the lowest tier: a release whose weights are read from a URL, range by range, as they are needed.

    store = Store("s3://bucket/release")          whatever fsspec knows
    folder = store.describe(cache)                configs, and the headers of the weight files in front of holes
    checkpoint = Checkpoint(folder, model)        reads from the store: the folder's manifest names it

Without torch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dayzero.errors import NotPossible, ReleaseError
from dayzero.schema.manifest import MANIFEST, Manifest, ManifestFile, save_manifest
from dayzero.schema.store import write_atomic

_WEIGHTS = ".safetensors"
_PREFIX = 8
_LIMIT = 100_000_000
"""Bytes of a header of safetensors, as the format's own library limits them."""
_SMALL = 64 << 20
"""Bytes up to which a file is taken for a description."""
_FOLDER = "stores"
_STATES = ".store-states.json"
"""What the store said of each file when it was described: one of the same state is not fetched again."""


class Store:
    """A folder at a URL; `options` go to fsspec. Raises NotPossible without fsspec, or without what the URL needs."""

    def __init__(self, url: str, **options: Any) -> None:
        try:
            import fsspec
        except ImportError:
            raise NotPossible("reading from a store needs fsspec", "pip install 'dayzero[store]'") from None
        try:
            self._system, self._path = fsspec.core.url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            raise NotPossible(f"{url} cannot be opened: {error}", "install what fsspec needs for it") from None
        self.url = url

    def describe(self, cache: Path) -> Path:
        """Write the release without its weights to a folder below `cache`: of each weight file the header, and a hole
        in the place of the rest. What is there already stays as long as the store's file is the same. Raises
        ReleaseError, StoreError."""
        folder = cache / _FOLDER / _name(self.url)
        folder.mkdir(parents=True, exist_ok=True)
        known, states, weights = _known(folder), {}, {}
        for name, entry in self._files().items():
            states[name] = hashlib.sha256(repr(sorted(entry.items())).encode()).hexdigest()
            if name.endswith(_WEIGHTS):
                weights[name] = ManifestFile(size=entry["size"])
            if known.get(name) != states[name] or not (folder / name).exists():
                self._fetch(folder / name, entry)
        for name in known.keys() - states.keys():
            (folder / name).unlink(missing_ok=True)
        own = _manifest(folder) if MANIFEST in states else Manifest(files={})
        save_manifest(folder, msgspec.structs.replace(own, files={**weights, **own.files}, store=self.url))
        states.pop(MANIFEST, None)  # what is there is no longer the store's
        write_atomic(folder / _STATES, msgspec.json.encode(states))
        return folder

    def _files(self) -> dict[str, Mapping[str, Any]]:
        """What is of use of the folder, by name."""
        try:
            self._system.invalidate_cache(self._path)  # what it remembers may be older than the store's files
            entries = self._asked(self._system.ls, self._path, detail=True)
        except OSError as error:
            raise ReleaseError(f"cannot read {self.url}: {error}", "check the address and the permissions") from None
        named = {entry["name"].rstrip("/").rpartition("/")[2]: entry for entry in entries if entry["type"] == "file"}
        return {name: entry for name, entry in sorted(named.items()) if not name.startswith(".")
                and (name.endswith(_WEIGHTS) or entry["size"] <= _SMALL)}

    def _fetch(self, path: Path, entry: Mapping[str, Any]) -> None:
        weights = path.name.endswith(_WEIGHTS)
        try:
            data = self._header(entry) if weights else self._bytes(entry["name"])
        except OSError as error:
            raise ReleaseError(f"cannot read {path.name} of {self.url}: {error}",
                               "check the address and the permissions") from None
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                file.write(data)
                file.truncate(entry["size"])
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    def _header(self, entry: Mapping[str, Any]) -> bytes:
        length = _PREFIX + int.from_bytes(self._bytes(entry["name"], 0, _PREFIX), "little")
        if not _PREFIX < length <= min(_LIMIT, entry["size"]):
            raise OSError("it has no header of safetensors")
        return self._bytes(entry["name"], 0, length)

    def read(self, path: Path, start: int, target: memoryview) -> None:
        """Fill `target` from byte `start` of the file of that name. Raises OSError when it ends before, and for
        whatever goes wrong with the store."""
        data = self._bytes(f"{self._path}/{path.name}", start, start + target.nbytes)
        if len(data) != target.nbytes:
            raise OSError(f"{path.name} ends within the range")
        target[:] = data

    def _bytes(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        data: bytes = self._asked(self._system.cat_file, path, start=start, end=end)
        return data

    def _asked(self, method: Any, *args: Any, **options: Any) -> Any:
        try:
            return method(*args, **options)
        except OSError:
            raise
        except Exception as error:  # of whatever library speaks to the store
            raise OSError(f"{type(error).__name__}: {error}") from error


def url_of(folder: Path) -> str:
    """The store that holds the weights of the release in a folder; empty: the folder itself does. Only what `describe`
    has written is believed, no manifest that came with a release. Raises ReleaseError."""
    if folder.parent.name != _FOLDER or not (folder / MANIFEST).exists():
        return ""
    url = _manifest(folder).store
    return url if folder.name == _name(url) else ""


def _name(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:20]


def _manifest(folder: Path) -> Manifest:
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ReleaseError(f"{MANIFEST} is not a manifest: {error}", "make it again, or remove it") from None


def _known(folder: Path) -> dict[str, str]:
    """States of files as they were described; a damaged file counts as none."""
    try:
        return msgspec.json.decode((folder / _STATES).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError, UnicodeError):
        return {}
