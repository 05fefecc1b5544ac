"""Which files a launch left for `check`, so that later it can be told whether they are still the same ones."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dayzero.errors import StoreError

_PATTERNS = ("assignment.json", "rank-*/result.json", "dump/*.safetensors")


def kept(folder: Path) -> dict[str, str]:
    """{path inside `folder`: SHA-256} of all that `check` reads. Raises StoreError when a file cannot be read."""
    paths = sorted(path for pattern in _PATTERNS for path in folder.glob(pattern))
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in paths}


def changed(folder: Path, before: dict[str, str]) -> list[str]:
    """Files of `folder` that are new or not what they were. Raises StoreError when one of `before` is gone."""
    now = kept(folder)
    if gone := sorted(before.keys() - now.keys()):
        raise StoreError(f"the run left {gone[0]} in {folder}, and it is gone", "run again with --from run --force")
    return [name for name, digest in now.items() if before.get(name) != digest]


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}", "run again with --from run --force") from None
