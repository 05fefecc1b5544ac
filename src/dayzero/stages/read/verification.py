"""Whether the files of a release are, bit for bit, those that were published.

Published digests come from a manifest, from the hub, or from what the hub's own tools left beside or in place of the
files when they fetched them: a blob's name in the cache, an etag in `.cache/huggingface/download`.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dayzero.errors import ReleaseError, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.schema import from_json
from dayzero.schema.base import Noun
from dayzero.schema.manifest import MANIFEST, Manifest

from .digests import MANIFEST_LIMIT, digest_paths, read_manifest, remembered
from .folder import blob_digest, list_files, read_bounded, role, safe_name

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_SHA256, _BLOB = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{40}")
_LINE = re.compile(r"\\?(?P<digest>[0-9a-fA-F]{64})[ \t][ *](?P<name>.+)")
_DOWNLOADS = Path(".cache", "huggingface", "download")
_ETAG_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Published:
    """What somebody states of a file."""

    digest: str | None
    """SHA-256, or for a small file of a hub its git blob id (SHA-1), in hex; None: only the size is stated."""
    size: int | None
    """Bytes; None: not stated."""
    needed: bool
    """Whether a release without the file is not complete."""


class CheckedFile(Noun, frozen=True, kw_only=True):
    """One file and how it compares."""

    name: str
    """Path inside the release."""
    status: str
    """same, different, size (of another size, not read), missing, absent (not needed and not there) or unlisted."""
    expected: str | None = None
    """Digest that was published."""
    actual: str | None = None
    """Digest of the file as it is; None: not computed."""
    remembered: bool = False
    """Read by an earlier call and not changed since."""


class Verification(Noun, frozen=True, kw_only=True):
    """How a release compares with what was published."""

    origin: str
    """Where the published digests are from."""
    files: tuple[CheckedFile, ...]
    """Every file, sorted by name."""
    bytes_read: int
    """Bytes that this call read."""
    seconds: float
    """Time that it took."""

    @property
    def passed(self) -> bool:
        """Whether nothing differs and nothing that is needed is missing."""
        return all(file.status in ("same", "absent", "unlisted") for file in self.files)


def verify_release(source: str, *, manifest: Path | None = None, hub: str | None = None, revision: str | None = None,
                   again: bool = False, cache: Path | None = None, progress: Progress = SILENT) -> Verification:
    """Verify a folder, against `hub` (`org/name`) if given, or this machine's copy of a hub id.

    Raises ReleaseError, UnsafePathError, HubError, UsageError.
    """
    root = Path(source)
    if manifest is not None and hub is not None:
        raise UsageError("--manifest and --hub exclude each other", "give one of them")
    if not root.is_dir():
        if not HUB_ID.fullmatch(source):
            raise ReleaseError(f"not a release folder: {source}", "give a folder, or a hub id (org/name)")
        from .hub import local_copy

        root, hub = local_copy(source, revision, cache), hub or (None if manifest else source)
    listing, origin = None, ""
    if hub is not None:
        from .hub import published

        commit, remote = published(hub, revision)
        listing = {name: Published(digest=file.sha256, size=file.size, needed=is_needed(name))
                   for name, file in remote.items()}
        origin = f"hub:{hub}@{commit}"
    return verify_folder(root.resolve(), manifest=manifest, listing=listing, origin=origin, again=again, cache=cache,
                         progress=progress)


def verify_folder(root: Path, *, manifest: Path | None = None, listing: Mapping[str, Published] | None = None,
                  origin: str = "", again: bool = False, cache: Path | None = None,
                  progress: Progress = SILENT) -> Verification:
    """Compare the files of `root` with `manifest` (ours, or what sha256sum writes), or with a hub's `listing`, or with
    what the folder itself tells of its origin. `again` reads files too whose digest is remembered.

    Raises ReleaseError, UnsafePathError, UsageError where no digest is known.
    """
    start = time.monotonic()
    sizes = {name: status.st_size for name, status in list_files(root).items() if name != MANIFEST}
    if manifest is not None:
        published, origin = _stated(manifest), str(manifest)
    elif listing is not None:
        published = dict(listing)
    else:
        published, origin = _own(root, sizes)
    if not any(file.digest for file in published.values()):
        raise UsageError(f"nothing states what the files of {root} should be",
                         "give --manifest (dayzero manifest or sha256sum writes one) or --hub org/name")
    whole = {name: root / name for name, file in published.items()
             if name in sizes and file.digest and file.size in (None, sizes[name])}
    blobs = {name for name in whole if len(published[name].digest or "") == 40}
    long = {name: path for name, path in whole.items() if name not in blobs}
    known = frozenset() if again else remembered(long, cache)
    actual = digest_paths(long, cache, progress, again) | {name: _blob_id(whole[name], sizes[name]) for name in blobs}
    return Verification(
        origin=origin, bytes_read=sum(sizes[name] for name in whole if name not in known),
        files=tuple(_compared(name, published.get(name), sizes.get(name), actual.get(name), name in known)
                    for name in sorted(published.keys() | sizes)),
        seconds=round(time.monotonic() - start, 3))


def _compared(name: str, stated: Published | None, size: int | None, actual: str | None, known: bool) -> CheckedFile:
    if stated is None or (stated.digest is None and size is not None and stated.size in (None, size)):
        return CheckedFile(name=name, status="unlisted")
    if size is None:
        return CheckedFile(name=name, status="missing" if stated.needed else "absent", expected=stated.digest)
    if stated.size not in (None, size):
        return CheckedFile(name=name, status="size", expected=stated.digest)
    return CheckedFile(name=name, status="same" if actual == stated.digest else "different", expected=stated.digest,
                       actual=actual, remembered=known)


def _blob_id(path: Path, size: int) -> str:
    """git's id of a file's content."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ReleaseError(f"cannot read {path}: {error.strerror}", "check the file and the disk") from None
    return hashlib.sha1(b"blob %d\0" % size + content, usedforsecurity=False).hexdigest()


def is_needed(name: str) -> bool:
    """Whether a file with a role: pictures and read-me files of a hub may stay there."""
    return name.endswith(".safetensors") or role(name, ()) != "other"


def _stated(path: Path) -> dict[str, Published]:
    """What a manifest says. Raises ReleaseError, UsageError, UnsafePathError."""
    if not path.is_file():
        raise UsageError(f"there is no manifest {path}", "give the file that `dayzero manifest` or sha256sum wrote")
    data = read_bounded(path, MANIFEST_LIMIT, path.name)
    if data.lstrip()[:1] == b"{":
        try:
            return _of_manifest(from_json(data, Manifest))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ReleaseError(f"{path.name} is damaged: {error}"[:300], "write it again") from None
    found = {}
    for line in data.decode("utf-8", "replace").splitlines():
        match = _LINE.fullmatch(line)
        if match:
            name = safe_name(match["name"].removeprefix("./"))
            found[name] = Published(digest=match["digest"].lower(), size=None, needed=True)
        elif line.strip():
            raise ReleaseError(f"{path.name} has a line that is no digest and name: {line[:60]!r}",
                               "give a file as `dayzero manifest` or sha256sum writes it")
    return found


def _of_manifest(manifest: Manifest) -> dict[str, Published]:
    if manifest.headers_only:
        raise ReleaseError("the folder holds headers only; there is no content to compare", "fetch the whole release")
    return {safe_name(name): Published(digest=(file.sha256 or "").lower() or None, size=file.size, needed=True)
            for name, file in manifest.files.items()}


def _own(root: Path, names: Mapping[str, int]) -> tuple[dict[str, Published], str]:
    """What the folder tells of its origin, and how."""
    manifest = read_manifest(root)
    if manifest is not None:
        return _of_manifest(manifest), MANIFEST
    found = {}
    for name in names:
        digest = blob_digest(root / name) or _blob_name(root / name) or _etag(root, name)
        if digest:
            found[name] = Published(digest=digest, size=None, needed=True)
    return found, "the hub, as its tools noted when they fetched the files"


def _blob_name(path: Path) -> str | None:
    """git's id of a small file in the hub's cache: the blob's name."""
    target = path.resolve()
    return target.name if target.parent.name == "blobs" and _BLOB.fullmatch(target.name) else None


def _etag(root: Path, name: str) -> str | None:
    """The digest that the hub's tools noted beside a file which they put into a plain folder: commit, etag, time."""
    note = root / _DOWNLOADS / f"{name}.metadata"
    try:
        if note.is_symlink() or not note.is_file() or note.stat().st_size > _ETAG_LIMIT:
            return None
        lines = note.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError):
        return None
    etag = lines[1].strip() if len(lines) > 1 else ""
    return etag if _SHA256.fullmatch(etag) or _BLOB.fullmatch(etag) else None
