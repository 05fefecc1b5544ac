"""model.safetensors.index.json: which shards a release has, and whether the index agrees with the shards' headers."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dayzero.errors import ReleaseError

from .folder import inside, read_bounded, safe_name

DEFAULT = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SERIES = "model-"
LIMIT = 2**30

_NUMBERED = re.compile(r"-[0-9]{1,9}-of-(?=[0-9]{1,9}\.safetensors$)")
_NUMBER = re.compile(r"^(?P<start>.*-)(?P<number>[0-9]{1,9})-of-(?P<count>[0-9]{1,9})\.safetensors$")
MOST_SHARDS = 10_000
"""Files of weights; the largest releases have a few hundred."""


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


_DECODER = msgspec.json.Decoder(_Index)


@dataclass(frozen=True, slots=True)
class Shards:
    """The files that hold a release's tensors."""

    present: tuple[str, ...]
    """Those that are there, sorted."""
    missing: tuple[str, ...]
    """Those that the index, or without one the numbers in the names, tell of and that are not there, sorted."""
    weight_map: dict[str, str] | None
    """The index: tensor name -> file; None: there is no index."""


def index_name(names: Collection[str]) -> str | None:
    """The index among a release's files; None when there is none, or several of which none has the usual name."""
    if DEFAULT in names:
        return DEFAULT
    others = [name for name in names if name.endswith(".safetensors.index.json") and "/" not in name]
    return others[0] if len(others) == 1 else None


def read_weight_map(root: Path, name: str) -> dict[str, str]:
    """Tensor name -> file, every file inside the folder. Raises ReleaseError, UnsafePathError."""
    try:
        weight_map = _DECODER.decode(read_bounded(inside(root, name), LIMIT, name)).weight_map
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ReleaseError(f"{name} is not an index of shards: {error}"[:300], "get the file again") from None
    files = set(weight_map.values())
    if len(files) > MOST_SHARDS:
        raise ReleaseError(f"{name} names {len(files)} files; at most {MOST_SHARDS} make sense", "get the file again")
    for file in files:
        safe_name(file)
    return weight_map


def choose(names: Collection[str], weight_map: dict[str, str] | None) -> Shards:
    """Which of a release's files hold its tensors.

    With an index: the files that it names, and those of the same series that it forgot. Without: `model.safetensors`,
    else the numbered files at the top, else all safetensors files there (copies in other layouts lie in sub-folders).
    """
    top = {name for name in names if name.endswith(".safetensors") and "/" not in name}
    numbered = {name for name in top if _NUMBERED.search(name)}
    if weight_map is None:
        chosen = {SINGLE} if SINGLE in top else _usual(numbered) or top
        return Shards(present=tuple(sorted(chosen)), missing=_gaps(chosen), weight_map=None)
    named = set(weight_map.values())
    series = {_NUMBERED.sub("-*-of-", name) for name in named}
    chosen = named & set(names) | {name for name in numbered if _NUMBERED.sub("-*-of-", name) in series}
    if not chosen and SINGLE in top:
        chosen = {SINGLE}
    return Shards(present=tuple(sorted(chosen)), missing=tuple(sorted(named - set(names))), weight_map=weight_map)


def _usual(numbered: set[str]) -> set[str]:
    """Of several series of numbered files, which hold the same tensors in other layouts, the one of the usual name."""
    usual = {name for name in numbered if name.startswith(SERIES)}
    return usual or numbered


def _gaps(names: Collection[str]) -> tuple[str, ...]:
    """The files that are missing from series `x-00001-of-00003.safetensors`, whose first number is 1 or 0."""
    series: dict[tuple[str, str], set[str]] = {}
    for match in filter(None, map(_NUMBER.match, names)):
        series.setdefault((match["start"], match["count"]), set()).add(match["number"])
    missing = []
    for (start, count), found in series.items():
        first, width = min(1, *map(int, found)), len(min(found))
        if int(count) <= MOST_SHARDS:
            wanted = {f"{number:0{width}}" for number in range(first, first + int(count))}
            missing += [f"{start}{number}-of-{count}.safetensors" for number in wanted - found]
    return tuple(sorted(missing))


def find(root: Path, names: Collection[str]) -> Shards:
    """The shards of the folder whose files are `names`, as `list_files` gives them.

    Raises ReleaseError, UnsafePathError.
    """
    name = index_name(names)
    return choose(names, read_weight_map(root, name) if name else None)
