"""Errors that lie in some rows: positions, sequences, tokens of an expert."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dayzero.schema.located import Pattern

from .facts import Array, Difference, Facts
from .subsets import hit, told

_MATCH = 0.9


def rows(difference: Difference, facts: Facts) -> Iterator[Pattern]:
    """Patterns of the rows that hold the error."""
    sizes = (difference.r**2).sum(1)
    found = hit(difference.by_row, sizes, most=1.0)
    wrong = np.zeros(len(difference.d), dtype=bool)
    if found is not None:
        wrong[found] = True
    share = float(difference.by_row[wrong].sum() / difference.energy)
    yield from _experts(wrong, share, facts)
    yield from _decoded(difference, sizes, facts)
    yield from _sequences(difference, sizes, facts)
    if found is not None and hit(difference.by_row, sizes) is not None:
        yield from _positions(wrong, share, facts)
        yield Pattern(name="rows", explained=share, words=f"{len(found)} of {len(wrong)} rows are wrong "
                      f"({told(found.tolist())})")


def _of_groups(difference: Difference, sizes: Array, number: Array) -> tuple[Array, float] | None:
    """(groups of rows that have most of the error while others have none to speak of, their share of it). Which rows
    of them does not matter: what is carried over from another sequence fades. `number`: of each row's group."""
    energies = np.bincount(number, difference.by_row)
    found = hit(energies, np.bincount(number, sizes), most=1.0)
    return None if found is None else (found, float(energies[found].sum() / difference.energy))


def _decoded(difference: Difference, sizes: Array, facts: Facts) -> Iterator[Pattern]:
    if facts.decoded is None or facts.decoded.all() or not facts.decoded.any():
        return
    found = _of_groups(difference, sizes, facts.decoded.astype(np.int64))
    if found is not None and found[0].tolist() == [1]:
        yield Pattern(name="decoding", explained=found[1], words="only tokens that are decoded with a cache are wrong: "
                      "what is read back from the cache, or a kernel for single tokens")


def _experts(wrong: Array, share: float, facts: Facts) -> Iterator[Pattern]:
    """Experts that no right token goes to, and of which every wrong token goes to one."""
    if facts.experts is None or len(facts.experts) != len(wrong) or wrong.all():
        return
    chosen = sorted(set(np.unique(facts.experts[wrong]).tolist()) - set(np.unique(facts.experts[~wrong]).tolist()))
    if not chosen or not np.isin(facts.experts[wrong], chosen).any(1).all():
        return
    chosen = _fewest(chosen, facts.experts[wrong])
    for number in chosen:
        yield Pattern(name="experts", explained=share, first=int(number), end=int(number) + 1,
                      words=f"only tokens that go to expert{'s' if len(chosen) > 1 else ''} {told(chosen)} are "
                      f"wrong: the weights of {'those experts' if len(chosen) > 1 else 'that expert'}")


def _fewest(chosen: list[int], routed: Array) -> list[int]:
    """Of experts, those that are needed so that every row has one."""
    left, found = routed, list[int]()
    while len(left):
        most = max(chosen, key=lambda expert: int((left == expert).any(1).sum()))
        found.append(most)
        left = left[~(left == most).any(1)]
    return sorted(found)


def _sequences(difference: Difference, sizes: Array, facts: Facts) -> Iterator[Pattern]:
    if facts.sequences is None:
        return
    every, number = np.unique(facts.sequences, return_inverse=True)
    found = _of_groups(difference, sizes, number)
    if found is not None:
        wrong = [int(each) for each in every[found[0]]]
        yield Pattern(name="sequences", explained=found[1], first=wrong[0], end=wrong[-1] + 1,
                      words=f"only sequence{'s' if len(wrong) > 1 else ''} {told(wrong)} of {len(every)} are wrong: "
                      "something of another sequence, or of padding, gets into them")


def _positions(wrong: Array, share: float, facts: Facts) -> Iterator[Pattern]:
    if facts.positions is None:
        return
    at = facts.positions
    bad = np.unique(at[wrong])
    last = int(at.max())
    lowest = int(bad[0])
    from_on = (at >= lowest) & _of_hit(wrong, facts)
    if len(bad) == 1 and lowest == 0:
        yield Pattern(name="first token", explained=share, first=0, end=1, words="only the first token of a sequence "
                      "is wrong: what is there before it (a state, a mask, a sink)")
    elif len(bad) == 1 and lowest == last:
        yield Pattern(name="last token", explained=share, first=last, end=last + 1,
                      words="only the last token is wrong")
    elif lowest > 0 and wrong[from_on].mean() >= _MATCH:
        yield Pattern(name="positions", explained=share, first=lowest, end=last + 1,
                      words=f"tokens from position {lowest} on are wrong: a limit in tokens, a page or a step of "
                      "decoding")
    elif int(bad[-1]) < last and wrong[(at <= bad[-1]) & _of_hit(wrong, facts)].mean() >= _MATCH:
        yield Pattern(name="positions", explained=share, first=lowest, end=int(bad[-1]) + 1,
                      words=f"tokens up to position {int(bad[-1])} are wrong: what is there before the first token")


def _of_hit(wrong: Array, facts: Facts) -> Array:
    """Rows of sequences that have a wrong one."""
    if facts.sequences is None:
        return np.ones(len(wrong), dtype=bool)
    return np.isin(facts.sequences, np.unique(facts.sequences[wrong]))
