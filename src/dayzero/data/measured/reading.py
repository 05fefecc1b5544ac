"""A parquet file of measured times into slices; what was read is kept as .npz in the user's cache folder.

Only the columns that the mapping names are read. The kept copy is found by the file's path, size and time and by the
mapping of it, so a plan reads a few arrays and needs pyarrow only once.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import msgspec
import numpy as np

from dayzero.errors import NotPossible, TargetError

from .grid import UNLIMITED, Array, Slice
from .mapping import Row

Keys = tuple[tuple[str, str], ...]
"""(key, value) of a slice, sorted."""
FORMAT = 4
"""Changes when what is kept does."""
_FIELDS = ("shapes", "logs", "measured", "left_out")


def slices(path: Path, row: Row) -> dict[Keys, Slice]:
    """The slices of a file. Raises NotPossible without pyarrow, TargetError for a file that is not such a table."""
    kept = _kept(path, row)
    if kept is not None and kept.is_file():
        try:
            return _loaded(kept)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            pass  # cut short, or of another program: it is made again
    made = parsed(columns(path, _names(row)), row)
    if kept is not None:
        _keep(kept, made)
    return made


def columns(path: Path, names: list[str]) -> dict[str, Array]:
    """Columns of a parquet file."""
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise NotPossible("pyarrow is not installed, which reads measured tables",
                          "pip install 'dayzero[measured]'") from None
    try:
        table = parquet.read_table(path, columns=names)
        return {name: table.column(name).to_numpy() for name in names}
    except (OSError, KeyError, pyarrow.ArrowException) as error:
        raise TargetError(f"{path} cannot be read as a table of {', '.join(names)}: {error}",
                          "the mapping in data/measured/tables.toml is for another form of this table") from None


def parsed(read: Mapping[str, Array], row: Row) -> dict[Keys, Slice]:
    """The slices in some columns. Rows that have no time, or of which a key is not mapped, are left out."""
    lengths = {axis: _axis(read, column, row, axis) for axis, column in (*row.shape.items(), *row.grid.items())}
    seconds = row.unit * np.sum([read[column] for column in row.seconds], axis=0)
    kept = np.isfinite(seconds) & (seconds > 0)
    for values in lengths.values():
        kept &= np.isfinite(values) & (values > 0)
    for column, patterns in row.where.items():
        kept &= _among(read[column], {text for text in np.unique(read[column].astype(str))
                                      if any(fnmatchcase(text, pattern) for pattern in patterns)})
    made = {}
    for keys, chosen in _groups(read, row, kept):
        own = {axis: values[chosen] for axis, values in lengths.items()}
        whole = np.stack(list(own.values()), axis=1)
        points, times = summed(whole, seconds[chosen], read[row.parts][chosen]) if row.parts else fastest(
            whole, seconds[chosen])
        own = dict(zip(own, points.T, strict=True))
        made[keys] = Slice.of({axis: own[axis] for axis in row.shape}, {axis: own[axis] for axis in row.grid}, times,
                              row.rising)
    return made


def _axis(read: Mapping[str, Array], column: str | float, row: Row, axis: str) -> Array:
    if not isinstance(column, str):
        return np.full(len(read[row.seconds[0]]), float(column))
    values = read[column].astype(float) * row.factor.get(axis, 1.0)
    return np.where(values == 0, UNLIMITED, values) if axis in row.unlimited else values


def _among(texts: Array, chosen: set[str]) -> Array:
    found: Array = np.isin(texts.astype(str), sorted(chosen))
    return found


def _groups(read: Mapping[str, Array], row: Row, kept: Array) -> Iterator[tuple[Keys, Array]]:
    """(keys, which rows) for each combination of keys."""
    found: list[tuple[dict[str, str], Array]] = [({}, kept)]
    for key, column in row.keys.items():
        if column.startswith("="):
            found = [({**keys, key: column[1:]}, rows) for keys, rows in found]
            continue
        texts = read[column].astype(str)
        known = row.values.get(key) or {text: text for text in np.unique(texts)}
        names = {name: {text for text, other in known.items() if other == name} for name in known.values()}
        found = [({**keys, key: name}, rows & _among(texts, own)) for keys, rows in found
                 for name, own in names.items()]
    for keys, rows in found:
        if rows.any():
            yield tuple(sorted(keys.items())), rows


def fastest(points: Array, seconds: Array) -> tuple[Array, Array]:
    """Each point once, with its least time."""
    unique, where = np.unique(points, axis=0, return_inverse=True)
    times = np.full(len(unique), np.inf)
    np.minimum.at(times, where.reshape(-1), seconds)
    return unique, times


def summed(points: Array, seconds: Array, parts: Array) -> tuple[Array, Array]:
    """Each point once, with the sum of its parts; those with another number of parts than most are left out."""
    numbered = np.unique(parts.astype(str), return_inverse=True)[1].reshape(-1, 1)
    each, least = fastest(np.concatenate([points, numbered], axis=1), seconds)
    unique, where, counts = np.unique(each[:, :-1], axis=0, return_inverse=True, return_counts=True)
    whole = counts == np.bincount(counts).argmax()
    return unique[whole], np.bincount(where.reshape(-1), weights=least)[whole]


def _names(row: Row) -> list[str]:
    columns = [*(column for column in row.keys.values() if not column.startswith("=")), *row.where, *row.seconds,
               *([row.parts] if row.parts else []),
               *(column for column in (*row.shape.values(), *row.grid.values()) if isinstance(column, str))]
    return list(dict.fromkeys(columns))


def _kept(path: Path, row: Row) -> Path | None:
    """Where the slices of a file are kept; None: this user has no home."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(root) if root else Path.home() / ".cache") / "dayzero" / "measured"
        about = path.resolve().stat()
    except (OSError, RuntimeError):
        return None
    identity = msgspec.json.encode([FORMAT, str(path.resolve()), about.st_size, about.st_mtime_ns, row])
    return folder / f"{hashlib.sha256(identity).hexdigest()[:32]}.npz"


def _keep(path: Path, made: Mapping[Keys, Slice]) -> None:
    """Write in one step; where that is not allowed nothing is kept."""
    arrays: dict[str, Array] = {}
    heads = []
    for i, (keys, one) in enumerate(made.items()):
        heads.append([keys, one.shape_axes, one.grid_axes, one.rough])
        arrays |= {f"{i}_{field}": getattr(one, field) for field in _FIELDS}
        arrays |= {f"{i}_points_{j}": points for j, points in enumerate(one.points)}
    arrays["head"] = np.frombuffer(msgspec.json.encode(heads), dtype=np.uint8)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(file.name, path)
    except OSError:
        return


def _loaded(path: Path) -> dict[Keys, Slice]:
    with np.load(path, allow_pickle=False) as kept:
        heads: list[Any] = msgspec.json.decode(kept["head"].tobytes())
        return {tuple((key, value) for key, value in keys): Slice(
            shape_axes=tuple(shape), grid_axes=tuple(grid), rough=rough,
            points=tuple(kept[f"{i}_points_{j}"] for j in range(len(grid))),
            **{field: kept[f"{i}_{field}"] for field in _FIELDS},
        ) for i, (keys, shape, grid, rough) in enumerate(heads)}
