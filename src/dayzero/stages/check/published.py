"""What lies beside the weights of two releases: texts, JSON and its keys, and how they differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dayzero.errors import ReleaseError
from dayzero.schema import Release

Table = Mapping[str, Any]
ABSENT = "absent"
"""Stands for the value of a key that is not there."""
_LIMIT = 256 * 2**20
"""Bytes of the largest file that is read; vocabularies have a few dozen million."""
_SHOWN, _WIDTH = 5, 60


def names(release: Release, *roles: str) -> set[str]:
    """Files of a release that have one of these roles and are here."""
    root = Path(str(release.root))
    return {file.name for file in release.files if file.role in roles and (root / file.name).is_file()}


def content(release: Release, name: str) -> bytes:
    """All bytes of a file. Raises ReleaseError when it cannot be read or is beyond reason."""
    path = Path(str(release.root)) / name
    try:
        if path.stat().st_size > _LIMIT:
            raise ReleaseError(f"{name} of {release.name} has more than {_LIMIT} bytes", "get the file again")
        return path.read_bytes()
    except OSError as error:
        raise ReleaseError(f"cannot read {path}: {error.strerror}", "check that it is there and readable") from None


def parsed(release: Release, name: str) -> Any:
    """What a file says: JSON as values, anything else as its digest. Raises ReleaseError."""
    data = content(release, name)
    if not name.endswith(".json"):
        return hashlib.sha256(data).hexdigest()
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ReleaseError(f"{name} of {release.name} is not JSON: {error}", "get the file again") from None


def table(release: Release, name: str) -> dict[str, Any]:
    """A JSON object; {} when the file is not there. Raises ReleaseError."""
    if not (Path(str(release.root)) / name).is_file():
        return {}
    found = parsed(release, name)
    if not isinstance(found, dict):
        raise ReleaseError(f"{name} of {release.name} is not a JSON object", "get the file again")
    return found


def matches(key: str, patterns: Iterable[str]) -> bool:
    """Whether one of the fnmatch patterns is the key's."""
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def flat(raw: Table, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with their values; an empty table is a value."""
    for key, value in raw.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def differences(ours: Table, theirs: Table, idle: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    """{key: (our value, the reference's)} of flat tables where they differ, in the reference's order."""
    return {key: (ours.get(key, ABSENT), theirs.get(key, ABSENT)) for key in dict.fromkeys((*theirs, *ours))
            if not matches(key, idle) and not _equal(ours.get(key, ABSENT), theirs.get(key, ABSENT))}


def _equal(ours: Any, theirs: Any) -> bool:
    """As JSON: true is not 1, and NaN is NaN."""
    return json.dumps(ours, sort_keys=True, default=str) == json.dumps(theirs, sort_keys=True, default=str) or (
        ours == theirs and isinstance(ours, (int, float)) and isinstance(theirs, (int, float))
        and not isinstance(ours, bool) and not isinstance(theirs, bool))


def told(found: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """`key is OURS instead of THEIRS` for each."""
    return [f"{key} is {_short(ours)} instead of {_short(theirs)}" for key, (ours, theirs) in found.items()]


def listed(texts: list[str], nothing: str) -> str:
    """The first few of many texts, or `nothing` when there is none."""
    more = f"; and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more if texts else nothing


def _short(value: Any) -> str:
    text = value if value is ABSENT else json.dumps(value, default=str)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."
