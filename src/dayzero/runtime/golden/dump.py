"""A golden dump, opened."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dayzero.errors import StoreError
from dayzero.schema import Layout
from dayzero.schema.golden import PADDING, Entry, Pass, RankDump, Rows
from dayzero.schema.release import ITEM_BITS

from .digests import Comparing
from .files import (
    Place,
    broken,
    check_entry,
    manifest_name,
    manifests,
    part_files,
    place_of,
    read_manifest,
    read_part,
)
from .values import AGAIN, Array, Files, decoded

BLOCK = 16 * 2**20
"""Bytes that are read at a time."""
NOISE = "noise-"
"""Folders inside of a dump that hold perturbed runs of the same begin so."""


class Item(NamedTuple):
    """One entry and where it is."""

    dump: RankDump
    """The rank that recorded it."""
    entry: Entry
    place: Place | None
    """None: values were not kept."""


class Dump:
    """All ranks' entries; made by `open_dump`. A context manager: it keeps files open."""

    def __init__(self, folder: Path, ranks: tuple[RankDump, ...], items: tuple[Item, ...],
                 passes: dict[int, dict[int, Pass]]) -> None:
        self.folder, self.ranks, self.items = folder, ranks, items
        self.passes = passes
        """{rank: {number: Pass}}"""
        self.files = Files()

    @property
    def finished(self) -> bool:
        """Whether all ranks of the layout are there and have recorded everything."""
        return all(each.finished for each in self.ranks) and len(self.ranks) == self.ranks[0].layout.world_size

    @cached_property
    def sequences(self) -> dict[int, Array]:
        """{number: token ids [length] int64} of all sequences, by position; -1 where one is not known."""
        found: dict[int, dict[int, int]] = {}
        for passes in self.passes.values():
            for each in passes.values():
                if len(each.tokens):
                    for (sequence, position), token in zip(positions(each.rows).tolist(), each.tokens.values.tolist(),
                                                           strict=True):
                        if sequence != PADDING:
                            found.setdefault(sequence, {})[position] = token
        made = {}
        for sequence in sorted(found):
            made[sequence] = np.full(max(found[sequence]) + 1, PADDING, dtype=np.int64)
            made[sequence][list(found[sequence])] = list(found[sequence].values())
        return made

    def pass_of(self, item: Item) -> Pass:
        """The pass that an entry is of."""
        return self.passes[item.dump.rank][item.entry.pass_no]

    def rows(self, item: Item) -> Array:
        """[rows, 2] int64: (sequence, position) of each row of the first axis that was kept, sequence -1 for padding;
        [0, 2] when the first axis is not `token` or nothing is known of its rows."""
        entry = item.entry
        if not entry.axes or entry.axes[0] != "token":
            return np.empty((0, 2), dtype=np.int64)
        every = positions(entry.rows or self.pass_of(item).rows)
        if held := next((each for each in entry.held if each.axis == 0), None):
            every = every[held.indices] if len(every) else every
        kept = entry.sample.rows if entry.sample is not None else None
        return every if kept is None or not len(every) else every[kept.values]

    def read(self, item: Item) -> Array:
        """The values that were kept, in `entry.kept_shape`: floats as f32 (F64 as f64), integers as int64, bool.

        Raises StoreError when none were kept or the file cannot be read."""
        blocks = [block for _, block in self.blocks(item, limit=1 << 62)]
        return blocks[0] if blocks else decoded(np.empty(0, np.uint8), item.entry.dtype).reshape(item.entry.kept_shape)

    def blocks(self, item: Item, *, limit: int = BLOCK) -> Iterator[tuple[int, Array]]:
        """(first row, values) of runs of rows of the first axis, each of at most about `limit` bytes in the file."""
        entry, place = item.entry, item.place
        if place is None:
            raise StoreError(f"no values of {entry.name or 'the model'} were kept in {self.folder}",
                             "record it again with --mode whole or sampled")
        shape = entry.kept_shape
        if not shape:
            yield 0, decoded(self.files.read(place.path, place.start, place.nbytes), entry.dtype).reshape(())
            return
        width = place.nbytes // shape[0] if shape[0] else 0
        if width * shape[0] != place.nbytes or (width * 8) % ITEM_BITS[entry.dtype]:
            limit = 1 << 62
        step = max(1, limit // max(1, width))
        for first in range(0, shape[0], step):
            count = min(step, shape[0] - first)
            raw = self.files.read(place.path, place.start + first * width, count * width)
            yield first, decoded(raw, entry.dtype).reshape((count, *shape[1:]))

    def verify(self, item: Item) -> None:
        """Raises StoreError when the values are not those that were written; nothing for an entry without values."""
        if item.place is None:
            return
        try:
            found = Comparing(item.entry.digest)
        except KeyError as unknown:
            raise StoreError(f"{item.place.path}: {item.entry.key} has a digest of an unknown kind: {unknown}", AGAIN
                             ) from None
        for first in range(0, item.place.nbytes, BLOCK):
            count = min(BLOCK, item.place.nbytes - first)
            found.update(self.files.read(item.place.path, item.place.start + first, count).data)
        if not found.same:
            raise StoreError(f"{item.place.path}: {item.entry.key} is not what was written: its digest differs", AGAIN)

    def close(self) -> None:
        """Close all files; a later read opens them again."""
        self.files.close()

    def __enter__(self) -> Dump:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_dump(folder: Path | str, *, unfinished: bool = False) -> Dump:
    """All ranks' manifests and headers; no values are read. `unfinished`: take also a dump that is not complete.

    Raises StoreError for a folder without one, and for one that is damaged or not complete.
    """
    folder = Path(folder)
    ranks = tuple(read_manifest(path) for path in manifests(folder))
    for rank in ranks:
        _check_rank(folder / manifest_name(rank.rank), rank, ranks[0].layout)
    items: list[Item] = []
    passes: dict[int, dict[int, Pass]] = {}
    for rank in ranks:
        passes[rank.rank] = _read_rank(folder, rank, items)
    dump = Dump(folder, ranks, tuple(items), passes)
    if not (dump.finished or unfinished):
        raise StoreError(_unfinished(dump), "record it again; --unfinished takes what is there")
    return dump


def _read_rank(folder: Path, rank: RankDump, items: list[Item]) -> dict[int, Pass]:
    """Adds the entries of a rank; its passes by number."""
    passes: dict[int, Pass] = {}
    places: dict[str, Place] = {}
    for path in part_files(folder, rank):
        part = read_part(path)
        for made in part.passes:
            _check_pass(path, made)
            passes[made.number] = made
        if twice := places.keys() & part.places.keys():
            broken(path, f"{min(twice)} is in an earlier file too")
        places |= part.places
        for entry in part.entries:
            if entry.pass_no not in passes:
                broken(path, f"nothing says what pass {entry.pass_no} is")
            check_entry(path, entry, rank.mode, passes[entry.pass_no])
            items.append(Item(rank, entry, place_of(path, entry, places)))
    return passes


def noise_folders(folder: Path | str) -> list[Path]:
    """Dumps inside of a dump that were recorded with it to tell its noise."""
    return sorted(path for path in Path(folder).glob(f"{NOISE}*") if path.is_dir() and not path.is_symlink())


def positions(rows: tuple[Rows, ...]) -> Array:
    """[rows, 2] int64: (sequence, position) of each."""
    counts = np.array([each.count for each in rows], dtype=np.int64)
    first = np.array([each.first for each in rows], dtype=np.int64)
    sequence = np.repeat(np.array([each.sequence for each in rows], dtype=np.int64), counts)
    steps = np.arange(counts.sum(), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([sequence, np.repeat(first, counts) + steps], axis=1)


def _check_rank(path: Path, rank: RankDump, layout: Layout) -> None:
    """Raises StoreError for a rank that the others' layout does not have."""
    if rank.layout != layout or not 0 <= rank.rank < layout.world_size:
        broken(path, f"rank {rank.rank} is not one of {layout.text}")
    for degree, index in rank.place.items():
        if not 0 <= index < getattr(layout, degree, 1):
            broken(path, f"{degree} {index} is no place in {layout.text}")


def _check_pass(path: Path, made: Pass) -> None:
    total = sum(each.count for each in made.rows)
    if any(each.count < 0 or each.first < 0 or each.sequence < PADDING for each in made.rows):
        broken(path, f"pass {made.number} has rows below 0")
    if total > 1 << 31 or (len(made.tokens) and len(made.tokens) != total):
        broken(path, f"pass {made.number} has {len(made.tokens)} tokens and {total} rows")


def _unfinished(dump: Dump) -> str:
    for each in dump.ranks:
        if not each.finished:
            why = f": {each.failure}" if each.failure else ""
            return f"the dump {dump.folder} is not finished: rank {each.rank} did not end recording{why}"
    world = dump.ranks[0].layout.world_size
    return f"the dump {dump.folder} is not complete: {len(dump.ranks)} of {world} ranks are there"
