"""How engines divide the memory of a device: one TOML file each, version by version, with the source of every fact."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from tomllib import loads
from typing import Any

import msgspec

from dayzero.schema.allocation import Allocation

_DATE = re.compile(r"\b(20\d\d)-(\d\d)(?:-(\d\d))?\b")
_VERSION = re.compile(r"\bv?(\d+(?:\.\d+)+)")


@cache
def allocation(engine: str, version: str = "") -> Allocation | None:
    """The rules of that version of an engine; None: nothing is known of the engine. `version` may be a number (0.8.5),
    a date (2025-07 or 2025-07-22: what was there on its last day), or empty (the newest that is known)."""
    stated = _known().get(engine)
    if stated is None:
        return None
    merged: dict[str, Any] = {}
    for entry in stated:
        if merged and not _reaches(version, entry):
            break
        sources = {**merged.get("sources", {}), **entry.get("sources", {})}
        merged = {**merged, **entry, "sources": sources}
    return msgspec.convert(merged, Allocation)


def allocations() -> tuple[str, ...]:
    """Names of engines whose rules are known; one may have several."""
    return tuple(_known())


@cache
def _known() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in sorted(files(__package__).joinpath("allocation").iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".toml"):
            content = loads(entry.read_text())
            for name in content.get("names", [entry.name.removesuffix(".toml")]):
                found[name] = content["versions"]
    return found


def _reaches(text: str, entry: dict[str, Any]) -> bool:
    """Whether a version, or a day, is not before the entry."""
    date = _DATE.search(text)
    if date:
        return f"{date[1]}-{date[2]}-{date[3] or '31'}" >= str(entry["date"])
    number = _VERSION.search(text)
    return number is None or _parts(number[1]) >= _parts(entry["since"])


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in version.split("."))
