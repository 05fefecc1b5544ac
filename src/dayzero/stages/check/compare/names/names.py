"""A map of names, and the file that holds one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from dayzero.errors import UsageError
from dayzero.schema import from_json
from dayzero.schema.comparison import NamePair
from dayzero.schema.store import read_regular
from dayzero.stages.check.compare.places import fill, numbers, template

_LIMIT = 64 * 2**20


class Shape(NamedTuple):
    """What is known of all tensors of a name, and of the names that differ from it in their numbers only."""

    tensors: frozenset[tuple[str, str, int]]
    """(what, slot, width of the whole) of each."""
    kind: str
    """As `Entry.kind`."""
    order: int
    """Place of the first of them in the order of execution."""
    numbers: frozenset[tuple[int, ...]]
    """The numbers in the names."""


class NameMap:
    """Pairs by the candidate's names."""

    def __init__(self, pairs: tuple[NamePair, ...]) -> None:
        self.pairs = pairs
        self._of = {name: pair for pair in pairs for name in pair.b}

    def pair_of(self, name: str) -> NamePair | None:
        """The pair that a name of the candidate is in."""
        return self._of.get(template(name))

    @staticmethod
    def theirs(pair: NamePair, name: str) -> tuple[str, ...]:
        """Names of the reference for a name of the candidate."""
        return tuple(fill(each, numbers(name)) for each in pair.a)

    @staticmethod
    def ours(pair: NamePair, name: str) -> tuple[str, ...]:
        """All names of the candidate that belong to the reference's, from one of them."""
        return tuple(fill(each, numbers(name)) for each in pair.b)


class _MapFile(msgspec.Struct, frozen=True):
    map: tuple[NamePair, ...]


def read_map(path: Path) -> tuple[NamePair, ...]:
    """Pairs of a file `{"map": [{"a": [...], "b": [...]}]}`; a report has them too. `*` stands for any number.

    Raises UsageError for a file that cannot be read or is none.
    """
    try:
        pairs = from_json(read_regular(path, _LIMIT), _MapFile).map
    except OSError as error:
        raise UsageError(f"--map: cannot read {path}: {error.strerror}",
                         "give a report, or a file with a map of its form") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"--map: {path} is no map of names: {error}",
                         'write {"map": [{"a": ["layers.*.q", "layers.*.k"], "b": ["layers.*.qk"]}]}') from None
    for pair in pairs:
        stars = {each.count("*") for each in (*pair.a, *pair.b)}
        if len(stars) != 1 or (len(pair.a) > 1 and len(pair.b) > 1):
            raise UsageError(f"--map: {list(pair.b)} to {list(pair.a)} is not one to one or several, or has another "
                             "number of * on one side", "name one module on one side, and the same * on both")
    return pairs
