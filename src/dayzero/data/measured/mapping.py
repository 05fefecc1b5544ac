"""`tables.toml`: what the columns of a table mean. Tomorrow's tables are rows there, not code."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from tomllib import loads

import msgspec


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of table. Names of axes are those of the operator in the planner."""

    file: str
    """Name of the file."""
    operator: str
    """Operator that it times."""
    keys: dict[str, str] = {}
    """What has to be equal -> the column that says it, or `=text` where all rows are that."""
    values: dict[str, dict[str, str]] = {}
    """Key -> (as the column has it -> as it is called here). Rows with other texts are left out; a key that is absent
    here takes them as they are."""
    where: dict[str, list[str]] = {}
    """Column -> patterns of the texts whose rows count; others are left out."""
    shape: dict[str, str | float] = {}
    """Axis whose nearest value is taken -> its column, or the number that all rows have."""
    grid: dict[str, str]
    """Axis that is interpolated -> its column."""
    rising: list[str] = []
    """Axes of the grid along which time never falls: more tokens are never faster."""
    factor: dict[str, float] = {}
    """Axis -> factor on its column."""
    unlimited: list[str] = []
    """Axes whose 0 means that there is no limit."""
    seconds: list[str]
    """Columns whose sum is the time."""
    unit: float
    """Seconds of one of their units."""
    parts: str = ""
    """Column that tells the parts of an operator apart: their times add up, and a point that lacks one is left out. Of
    other rows at one point, kernels to choose from, the fastest counts."""


class Instead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is read where no table has a key's value."""

    key: str
    """The key."""
    value: str
    """Its value."""
    take: list[str]
    """Others, best first."""


class Mapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    distribution: str
    """Name of the package that has the tables."""
    folder: str
    """Where in it they are: folder/system/family/engine/version/file."""
    devices: dict[str, str]
    """Device description -> folder of its tables."""
    engines: dict[str, str]
    """Engine profile -> folder of its tables."""
    used: list[str]
    """Classes of operators whose tables take part in a plan that is asked for them."""
    fused: list[list[str]]
    """Roles of weights with one input that engines multiply as one matrix."""
    calls: dict[str, dict[str, float]]
    """Phase -> class of operators -> microseconds of a kernel whatever its size."""
    instead: list[Instead]
    """What is read where a value is missing."""
    tables: list[Row]
    """Kinds of tables."""

    def rows(self, file: str) -> list[Row]:
        """What a file of that name holds; empty: nothing that is mapped."""
        return [row for row in self.tables if row.file == file]

    def choices(self, keys: dict[str, str]) -> list[dict[str, str]]:
        """The keys, then with one value after another replaced by what may stand for it."""
        made = [keys]
        for one in self.instead:
            made += [{**known, one.key: other} for known in made if known.get(one.key) == one.value
                     for other in one.take]
        return made


@cache
def mapping() -> Mapping:
    """The shipped mapping."""
    return msgspec.convert(loads(files(__package__).joinpath("tables.toml").read_text()), Mapping)
