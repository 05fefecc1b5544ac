"""read: a release folder, a card or a model hub's id becomes a `Release`.

Names, shapes and dtypes come from the safetensors headers; the index is compared with them and the
config kept as it is.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dayzero.errors import ReleaseError, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.schema import Release

from .card import read_card
from .card_of import card_of
from .card_text import card_text
from .config import printable
from .digests import cache_folder, file_digests, verify, write_manifest
from .folder import config_names
from .local import read_folder
from .verification import HUB_ID, Verification, verify_release
from .write import write_release

__all__ = [
    "Verification", "card_of", "card_text", "file_digests", "read", "verify", "verify_release", "write_manifest",
    "write_release",
]  # fmt: skip


def read(source: str | Path, *, revision: str | None = None, metadata_only: bool = False, cache: Path | None = None,
         again: bool = False, progress: Progress = SILENT) -> Release:
    """The release at `source`: a folder, a card (`*.toml`), a hub id (`org/name`, at `revision`), or the URL of an
    object store's folder, from which weights are read when they are needed.

    `metadata_only` fetches headers instead of weights from a hub, and leaves the files of a folder unhashed. `cache` is
    where digests and what comes from a hub are kept (default: below $XDG_CACHE_HOME; weights: in the hub's own cache).
    `again` reads and hashes every file, also one that looks as it did before; else the tensors of large releases are
    kept in the cache.
    Raises ReleaseError, UnsafePathError, CardError, HubError, UsageError.
    """
    path = Path(source)
    is_card = path.suffix == ".toml"
    is_local = is_card or os.path.exists(path)  # False, not an error, for what cannot be a path
    if is_local and revision is not None:
        raise UsageError(f"{printable(str(source))} is not on a hub and has no revision {revision!r}",
                         "leave the revision out")
    if is_card:
        return read_card(path)
    if os.path.isdir(path):
        release = read_folder(path.resolve(), cache=cache, again=again, progress=progress)
    elif not is_local and "://" in str(source):
        return _read_store(str(source), cache, again, progress)
    elif not is_local and HUB_ID.fullmatch(str(source)):
        release = _read_hub(str(source), revision, metadata_only, cache, again, progress)
    else:
        known = f"a folder with {config_names()}, a card (*.toml), a hub id (org/name) or a store's URL"
        raise ReleaseError(f"not a release folder: {printable(str(source))}", f"give {known}")
    return release if metadata_only else _with_digests(release, cache, again, progress)


def _read_hub(repo: str, revision: str | None, metadata_only: bool, cache: Path | None, again: bool,
              progress: Progress) -> Release:
    from .hub import fetch

    copy = fetch(repo, revision=revision, metadata_only=metadata_only, cache=cache, progress=progress)
    published = f"{repo}@{copy.commit}"
    release = read_folder(copy.folder, name=repo, origin=f"hub:{published}", listing=copy.listing, cache=cache,
                          again=again, progress=progress)  # fmt: skip
    return msgspec.structs.replace(release, hub=published)


def _read_store(url: str, cache: Path | None, again: bool, progress: Progress) -> Release:
    """Headers and small files come now; digests of weights would take all of them."""
    from dayzero.runtime.store import Store

    store = Store(url)
    progress.update(f"fetching headers of {url}")
    folder, name = store.describe(cache_folder(cache)), url.rstrip("/").rpartition("/")[2]
    return read_folder(folder, name=name, origin=url, cache=cache, again=again, progress=progress)


def _with_digests(release: Release, cache: Path | None, again: bool, progress: Progress) -> Release:
    digests = file_digests(release, progress, cache, again)
    files = tuple(msgspec.structs.replace(file, sha256=digests.get(file.name)) for file in release.files)
    return msgspec.structs.replace(release, files=files)
