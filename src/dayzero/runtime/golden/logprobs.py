"""Logprobs of the tokens that were given: as a server told them, or made of logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dayzero.schema import Column
from dayzero.schema.golden import PADDING, Entry, Pass, Rows, Statistics

from .dump import Dump, Item

TOKEN, TOP, TOP_IDS = "token", "top", "top_indices"
"""Slots of entries of logprobs."""
BLOCK = 16 * 2**20
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Logprobs:
    """Of one sequence. Row i is about the token at position i + 1."""

    tokens: Floats
    """[length - 1]: natural logarithm of the probability of each; NaN: not known."""
    top_ids: Ints
    """[length - 1, k]: the likeliest tokens, best first; -1: not known which."""
    top: Floats
    """[length - 1, k]: theirs; -inf where there are fewer."""


def logprobs(dump: Dump, top: int = 5) -> dict[int, Logprobs]:
    """{sequence: Logprobs} of all sequences of more than one token of which the dump has any, from what it tells of
    logprobs or else from its logits, where a rank has all of them. Raises StoreError for files that are damaged."""
    made = {number: _empty(len(ids), top) for number, ids in dump.sequences.items() if len(ids) > 1}
    found = set()
    for item in dump.items:
        if item.place is not None and item.entry.what == "logprobs":
            _told(dump, item, made)
        elif item.place is not None and item.entry.what == "logits" and not (
                item.entry.held or item.entry.summed or item.entry.sample):
            _from_logits(dump, item, made)
        else:
            continue
        found |= set(dump.rows(item)[:, 0].tolist())
    return {number: each for number, each in made.items() if number in found}


def _empty(length: int, top: int) -> Logprobs:
    return Logprobs(np.full(length - 1, np.nan), np.full((length - 1, top), -1, dtype=np.int64),
                    np.full((length - 1, top), -np.inf))


def _told(dump: Dump, item: Item, made: dict[int, Logprobs]) -> None:
    values = dump.read(item)
    for row, (sequence, position) in enumerate(dump.rows(item).tolist()):
        if sequence in made and position > 0:
            into = made[sequence]
            if item.entry.slot == TOKEN:
                into.tokens[position - 1] = values[row]
            else:
                target: Any = into.top if item.entry.slot == TOP else into.top_ids
                count = min(values.shape[1], target.shape[1])
                target[position - 1, :count] = values[row, :count]


def _from_logits(dump: Dump, item: Item, made: dict[int, Logprobs]) -> None:
    rows, sequences = dump.rows(item), dump.sequences
    for first, block in dump.blocks(item, limit=BLOCK):
        wide = block.astype(np.float64)
        wide -= wide.max(axis=-1, keepdims=True)
        wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
        for values, (sequence, position) in zip(wide, rows[first:first + len(block)].tolist(), strict=True):
            if sequence in made and position < len(made[sequence].tokens):
                token = int(sequences[sequence][position + 1])
                if token == PADDING:
                    continue
                into = made[sequence]
                into.tokens[position] = values[token]
                count = min(into.top.shape[1], len(values))
                best = np.argpartition(-values, count - 1)[:count] if count else np.empty(0, np.int64)
                best = best[np.lexsort((best, -values[best]))]
                into.top_ids[position, :count], into.top[position, :count] = best, values[best]


def entries(number: int, tokens: Ints, told: Logprobs) -> tuple[Pass, Iterator[tuple[Entry, Any]]]:
    """(the pass, entries with their values) of a sequence whose logprobs somebody told."""
    length = len(tokens)
    made = Pass(number=number, phase="prefill", shape=(1, length),
                rows=(Rows(sequence=number, first=0, count=length),), tokens=Column(tokens))
    rows = (Rows(sequence=number, first=1, count=length - 1),)

    def each() -> Iterator[tuple[Entry, Any]]:
        for order, (slot, values) in enumerate(((TOKEN, told.tokens), (TOP, told.top), (TOP_IDS, told.top_ids))):
            dtype = "I64" if slot == TOP_IDS else "F64"
            values = np.ascontiguousarray(values, "<i8" if slot == TOP_IDS else "<f8")
            yield Entry(name="", module="", kind="model", what="logprobs", slot=slot, pass_no=number, call=0,
                        order=3 * number + order, axes=("token", "channel")[:values.ndim], shape=values.shape,
                        dtype=dtype, statistics=statistics(values), rows=rows), values
    return made, each()


def statistics(values: NDArray[Any]) -> Statistics:
    """Of an array of numbers."""
    wide = values.astype(np.float64)
    kept = wide[np.isfinite(wide)]
    nan, count = int(np.isnan(wide).sum()), wide.size
    if not kept.size:
        return Statistics(count=count, nan=nan, inf=count - nan, minimum=0.0, maximum=0.0, mean=0.0, rms=0.0,
                          max_abs=0.0)
    largest = float(np.abs(kept).max())
    return Statistics(count=count, nan=nan, inf=count - nan - kept.size, minimum=float(kept.min()),
                      maximum=float(kept.max()), mean=float(kept.mean()), max_abs=largest,
                      rms=float(np.sqrt(np.mean((kept / (largest or 1.0)) ** 2)) * largest))
