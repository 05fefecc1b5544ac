"""What a server tells of given tokens against what another dump says of them: its logprobs, or those of its logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dayzero.runtime.golden import Dump
from dayzero.runtime.golden.logprobs import Logprobs, logprobs
from dayzero.runtime.golden.values import Array
from dayzero.schema import Check, Divergence
from dayzero.schema.comparison import TokenDifference
from dayzero.schema.located import Pattern
from dayzero.stages.check.measure import judged

from .metrics import Values
from .places import Index, layer_of
from .tokens import MOST, given
from .tolerances import FACTOR, estimated

Flags = NDArray[np.bool_]
_NEVER, _MANY = 1 << 62, 0.5
_SIGMAS, _MEAN = 4.0, 0.25
"""How much larger the largest of many differences is than their size, and their mean's share of it."""


class Told(NamedTuple):
    """Rows of which both say something."""

    sequences: Index
    positions: Index
    """Of the token that the logprob is of."""
    ours: Values
    theirs: Values
    same: float
    """Share of rows with the same likeliest token; NaN: not told."""


class Spoken(NamedTuple):
    """What came of it."""

    checks: list[Check]
    first: Divergence | None
    pattern: tuple[Pattern, ...]
    note: str
    tokens: tuple[TokenDifference, ...] = ()
    """Positions at which the two would choose other tokens."""


def tells(dump: Dump) -> bool:
    """Whether logprobs were recorded."""
    return any(item.entry.what == "logprobs" for item in dump.items)


def spoken(a: Dump, b: Dump, noise: Sequence[Dump]) -> Spoken | None:
    """None when the two have no logprob in common. Raises StoreError for files that are damaged."""
    theirs, ours = logprobs(a), logprobs(b)
    told = _told(theirs, ours)
    if told is None:
        return None
    gap = np.abs(told.ours - told.theirs)
    others = (_told(theirs, logprobs(other)) for other in noise)
    correct = [np.abs(each.ours - each.theirs) for each in others if each is not None]
    largest, mean, source = _tolerance(a, told, correct)
    detail = f"{len(gap)} tokens" + (f", the same likeliest one in {told.same:.2%}" if isfinite(told.same) else "")
    name = "logprobs of the given tokens"
    checks = [judged(f"{name}, largest difference", float(gap.max()), largest, source, detail),
              judged(f"{name}, mean difference", float(gap.mean()), mean, source, detail)]
    tokens = _others(theirs, ours, 2 * largest, a.sequences)
    if all(check.passed for check in checks):
        return Spoken(checks, None, (), "", tokens)
    at = int(np.flatnonzero(gap > largest)[0]) if (gap > largest).any() else int(gap.argmax())
    where = f"logprob of position {told.positions[at]} of sequence {told.sequences[at]}"
    first = Divergence(layout=b.ranks[0].layout.text, place=where, layer=None, relative_l2=float(gap[at]), before=0.0,
                       op="logprobs of the given tokens")
    pattern = _from_position(told, gap > largest)
    words = "".join(f"; {each.words}" for each in pattern)
    note = f"{where} is the first that is off; logprobs alone do not tell the module{words}"
    return Spoken(checks, first, pattern, note, tokens)


def _from_position(told: Told, off: Flags) -> tuple[Pattern, ...]:
    """That none is off before one position and many are from it on."""
    start = int(told.positions[off].min(initial=_NEVER))
    after = told.positions >= start
    if start == _NEVER or not (~after).any() or off[after].mean() < _MANY:
        return ()
    words = f"off from position {start} on"
    if start <= 2:
        words += (", where what is before begins to count: what depends on positions or on earlier tokens, such as the "
                  "rotary embedding, the mask or the cache")
    return (Pattern(name="positions", explained=float(off[after].mean()), words=words, first=start),)


def _told(theirs: Mapping[int, Logprobs], ours: Mapping[int, Logprobs]) -> Told | None:
    rows, same = [], []
    for number in sorted(theirs.keys() & ours.keys()):
        length = min(len(theirs[number].tokens), len(ours[number].tokens))
        r, x = theirs[number].tokens[:length], ours[number].tokens[:length]
        kept = np.flatnonzero(~np.isnan(r) & ~np.isnan(x))
        rows.append(np.stack([np.full(len(kept), number), kept + 1, x[kept], r[kept]]))
        best = [each[number].top_ids[:length][kept, 0] for each in (ours, theirs)]
        both = (best[0] >= 0) & (best[1] >= 0)
        same.append((best[0] == best[1])[both])
    table = np.concatenate(rows, axis=1) if rows else np.empty((4, 0))
    if not table.shape[1]:
        return None
    agree = np.concatenate(same)
    return Told(table[0].astype(np.int64), table[1].astype(np.int64), table[2], table[3],
                float(agree.mean()) if agree.size else float("nan"))


def _others(theirs: Mapping[int, Logprobs], ours: Mapping[int, Logprobs], lead: float, sequences: Mapping[int, Array]
            ) -> tuple[TokenDifference, ...]:
    """Where both tell their likeliest tokens."""
    made = []
    for number in sorted(theirs.keys() & ours.keys()):
        a, b = theirs[number], ours[number]
        for row in range(min(len(a.tokens), len(b.tokens))):
            one, other = int(a.top_ids[row, 0]), int(b.top_ids[row, 0])
            if min(one, other) >= 0 and one != other:
                least = _lead(a, row, other)
                made.append(TokenDifference(
                    name="logprobs", sequence=number, position=row + 1, given=given(sequences, number, row + 1), a=one,
                    a_margin=_lead(a, row), b=other, b_margin=_lead(b, row), lead=least, tie=least <= lead))
    return tuple(made[:MOST])


def _lead(said: Logprobs, row: int, over: int | None = None) -> float:
    """Of the likeliest token over the second, or over another; over the last that is known where that is none of them.
    """
    ids, values = said.top_ids[row], said.top[row][np.isfinite(said.top[row])]
    at = [1] if over is None else np.flatnonzero(ids == over).tolist()
    return float(values[0] - values[min([*at, len(values) - 1])]) if len(values) else 0.0


def _tolerance(a: Dump, told: Told, correct: Sequence[Values]) -> tuple[float, float, str]:
    """(of the largest difference, of the mean one, where they come from)."""
    if correct:
        worst, mean = (max(float(of(each)) for each in correct) for of in (np.max, np.mean))
        return FACTOR * worst, FACTOR * mean, f"{FACTOR:g} times what correct runs differ by, at most {worst:.2g} nats"
    layers = max((layer_of(item.entry.name) or 0 for item in a.items), default=0)
    size = float(np.sqrt(np.mean(told.theirs**2)))
    limit = _SIGMAS * estimated("BF16", layers) * size
    source = "estimated from the roundoff of BF16 and the number of layers: the server's precision is not known"
    return limit, limit * _MEAN, source
