"""A user's own table: one TOML file for one operator on one device. docs/measured.md has the form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dayzero.data.files import load_own
from dayzero.errors import TargetError

from .grid import Array, Slice
from .mapping import Row
from .reading import Keys, columns, parsed

HINT = "docs/measured.md shows such a file"


class Own(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    operator: str
    """Operator that it times, such as linear."""
    device: str
    """Device description that it holds for."""
    source: str
    """When, where and how it was measured."""
    engine: str = ""
    """Engine profile whose kernels ran; empty: none in particular."""
    version: str = "0"
    """Version of the engine."""
    keys: dict[str, str] = {}
    """What has to be equal, such as scheme."""
    shape: list[str] = []
    """Columns whose nearest value is taken."""
    grid: list[str]
    """Columns that are interpolated."""
    rising: list[str] = []
    """Those of `grid` along which time never falls."""
    rows: dict[str, list[float]] | str
    """Columns of one length, seconds among them; or the name of a parquet file beside this one that has them."""


@dataclass(frozen=True)
class OwnTable:
    """Such a file, read."""

    about: Own
    """What it says of itself."""
    slices: dict[Keys, Slice]
    """One slice."""


def own_table(path: Path) -> OwnTable:
    """The table of a file. Raises TargetError."""
    try:
        about = msgspec.convert(load_own(path, HINT), Own)
    except msgspec.ValidationError as error:
        raise TargetError(f"{path} is no table of measured times: {error}", HINT) from None
    names = [*about.shape, *about.grid, "seconds"]
    read: dict[str, Array] = {}
    if isinstance(about.rows, str):
        if Path(about.rows).name != about.rows:
            raise TargetError(f"{path}: rows has to be the name of a file beside it", HINT)
        read = columns(path.parent / about.rows, names)
    else:
        read = _columns(path, about.rows, names)
    row = Row(file=path.name, operator=about.operator, keys={key: f"={value}" for key, value in about.keys.items()},
              shape={name: name for name in about.shape}, grid={name: name for name in about.grid},
              rising=about.rising, seconds=["seconds"], unit=1.0)
    made = parsed(read, row) if set(about.rising) <= set(about.grid) else {}
    if not made:
        raise TargetError(f"{path} has no row of positive lengths and seconds, or rising names what is not in grid",
                          HINT)
    return OwnTable(about, made)


def _columns(path: Path, rows: dict[str, Any], names: list[str]) -> dict[str, Array]:
    if set(rows) != set(names) or len({len(values) for values in rows.values()}) != 1:
        raise TargetError(f"{path}: rows needs columns of one length named {', '.join(names)}", HINT)
    return {name: np.array(values, dtype=float) for name, values in rows.items()}
