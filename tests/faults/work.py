"""The tokens that every run is given, and the ways of running them: alone or together, padded or packed, in chunks,
with and without a cache. Tokens are forced: what is compared is never an answer that went another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

PROMPTS = (44, 31, 21, 9)
"""Tokens of each sequence that are there at once; the longest is beyond every window and top-k of the models."""
STEPS = 4
"""Tokens that come one by one after it."""
Runs = tuple[tuple[int, int, int], ...]
"""Rows of a pass in order: (sequence or -1 for padding, first position, count)."""
Expect = Callable[[Sequence[int]], None]
"""Called with the numbers of the sequences of a batch that begins."""


def sequences(seed: int = 0, vocabulary: int = 320) -> tuple[tuple[int, ...], ...]:
    """Token ids of each sequence."""
    numbers = torch.Generator().manual_seed(1000 + seed)
    return tuple(tuple(torch.randint(3, vocabulary, (count + STEPS,), generator=numbers).tolist()) for count in PROMPTS)


@dataclass(frozen=True)
class Way:
    """How a run is driven."""

    batch: int = 1
    """Sequences in one pass."""
    padding: str = "left"
    """Where a batch of several lengths is filled up: left or right. Right: without a cache."""
    packed: bool = False
    """All sequences behind each other in one row, without a cache."""
    chunk: int | None = None
    """Most tokens of a prefill pass."""
    cache: bool = True
    """Whether the last tokens come one by one; without: all tokens in one pass."""
    shift: int = 0
    """A fault: what is added to positions of tokens that come one by one, where they were padded."""


@dataclass(frozen=True)
class Meddling:
    """What a faulty engine does to caches."""

    begin: Callable[[Any, Any], None] | None = None
    """Given the cache of a batch that begins and that of the batch before, or None."""
    filled: Callable[[Any], None] | None = None
    """Given the cache when the prompt is in it."""


@dataclass
class _Batch:
    numbers: list[int]
    cache: Any
    logits: dict[int, list[torch.Tensor]] = field(default_factory=dict)


def run(model: Any, way: Way = Way(), *, tokens: Sequence[Sequence[int]] | None = None, expect: Expect | None = None,
        meddling: Meddling = Meddling(), only: Sequence[int] | None = None) -> dict[int, torch.Tensor]:
    """{sequence: f32 logits [tokens, vocabulary]}. `only`: numbers of the sequences that are run."""
    from transformers import DynamicCache

    ids = tokens or sequences()
    wanted = list(range(len(ids)) if only is None else only)
    if way.packed:
        if expect:
            expect(range(len(ids)))
        return _packed(model, ids)
    made: dict[int, torch.Tensor] = {}
    before = None
    for first in range(0, len(wanted), way.batch):
        numbers = wanted[first : first + way.batch]
        cache = DynamicCache(config=model.config) if way.cache else None
        if meddling.begin:
            meddling.begin(cache, before)
        if expect:
            expect(numbers)
        batch = _Batch(numbers, cache, {number: [] for number in numbers})
        with torch.no_grad():
            for rows, inputs in _passes(way, ids, batch, meddling):
                _keep(batch, rows, model(**inputs, use_cache=way.cache).logits)
        made |= {number: torch.cat(parts) for number, parts in batch.logits.items()}
        before = cache
    return made


def _passes(way: Way, ids: Sequence[Sequence[int]], batch: _Batch, meddling: Meddling
            ) -> Iterator[tuple[Runs, dict[str, Any]]]:
    lengths = {number: len(ids[number]) - (STEPS if way.cache else 0) for number in batch.numbers}
    longest = max(lengths.values())
    make = partial(_inputs, way, ids, batch, lengths, longest)
    for first in range(0, longest, way.chunk or longest):
        yield make(first, min(longest, first + (way.chunk or longest)), 0)
    if way.cache:
        if meddling.filled:
            meddling.filled(batch.cache)
        for column in range(longest, longest + STEPS):
            yield make(column, column + 1, way.shift)


def _inputs(way: Way, ids: Sequence[Sequence[int]], batch: _Batch, lengths: dict[int, int], longest: int, first: int,
            end: int, shift: int) -> tuple[Runs, dict[str, Any]]:
    """Columns [first, end) of the batch: token of column c of a sequence of length n is c - (longest - n)."""
    rows: list[tuple[int, int, int]] = []
    tokens, positions, mask = [], [], []
    for number in batch.numbers:
        pad = longest - lengths[number] if way.padding == "left" else 0
        known = len(ids[number]) if way.cache else lengths[number]
        places = [column - pad for column in range(first, end)]
        tokens.append([ids[number][place] if 0 <= place < known else 2 for place in places])
        positions.append([max(0, place + (shift if pad else 0)) for place in places])
        mask.append([int(0 <= column - pad < known) for column in range(end)])
        before = sum(place < 0 for place in places)
        inside = sum(0 <= place < known for place in places)
        runs = ((-1, 0, before), (number, max(0, places[0]), inside), (-1, 0, len(places) - before - inside))
        rows += [each for each in runs if each[2]]
    inputs: dict[str, Any] = {"input_ids": torch.tensor(tokens)}
    if len(batch.numbers) > 1:
        inputs |= {"attention_mask": torch.tensor(mask), "position_ids": torch.tensor(positions)}
    if way.cache:
        inputs["cache"] = batch.cache
    return tuple(rows), inputs


def _packed(model: Any, ids: Sequence[Sequence[int]]) -> dict[int, torch.Tensor]:
    flat = [token for each in ids for token in each]
    positions = [place for each in ids for place in range(len(each))]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([flat]), position_ids=torch.tensor([positions]), use_cache=False).logits
    parts = logits[0].float().split([len(each) for each in ids])
    return dict(enumerate(parts))


def _keep(batch: _Batch, rows: Runs, logits: torch.Tensor) -> None:
    flat, start = logits.flatten(0, 1).float(), 0
    for number, _, count in rows:
        if number >= 0:
            batch.logits[number].append(flat[start : start + count])
        start += count


def distance(one: dict[int, torch.Tensor], other: dict[int, torch.Tensor]) -> float:
    """Relative L2 of logits over all tokens; infinite when one is not a number."""
    wanted = torch.cat([one[number] for number in sorted(one)])
    made = torch.cat([other[number] for number in sorted(one)])
    error = float((made - wanted).norm() / wanted.norm())
    return error if error == error else float("inf")
