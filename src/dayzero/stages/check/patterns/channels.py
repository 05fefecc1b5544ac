"""Errors that lie in some channels: heads, shares of ranks, quantisation blocks, halves, every n-th."""

from __future__ import annotations

from collections.abc import Iterator

from dayzero.schema.located import Pattern

from .facts import Array, Difference, Facts
from .subsets import groups, hit, is_range, step, told


def channels(difference: Difference, facts: Facts) -> Iterator[Pattern]:
    """Patterns of the channels that hold the error."""
    found = hit(difference.by_channel, (difference.r**2).sum(0))
    if found is None:
        return
    share = float(difference.by_channel[found].sum() / difference.energy)
    yield from _named(found, difference.width, share, facts)
    first, end = int(found[0]), int(found[-1]) + 1
    where = f"channels {told(found.tolist())}"
    zero = bool((difference.x[:, found] == 0).all() and (difference.r[:, found] != 0).any())
    yield Pattern(name="channels", explained=share, first=first if is_range(found) else -1,
                  end=end if is_range(found) else -1,
                  words=f"{len(found)} of {difference.width} channels are wrong ({where})"
                  + ("; they are zero: nothing was computed or loaded for them" if zero else
                     ": rows of a weight that are not those of the file"))


def _named(found: Array, width: int, share: float, facts: Facts) -> Iterator[Pattern]:
    first, end = int(found[0]), int(found[-1]) + 1
    if every := step(found, width):
        yield Pattern(name="every n-th channel", explained=share, words=f"one channel in {every} is wrong, from "
                      f"{first} on: an interleaved layout is taken for one in parts, or the other way round")
    if is_range(found) and len(found) > 1:
        for count in facts.ranks:
            if width % count == 0 and len(found) == width // count and first % len(found) == 0:
                yield Pattern(name="rank boundary", explained=share, first=first, end=end,
                              words=f"channels {first} to {end - 1} are wrong: the share of rank {first // len(found)} "
                              f"of {count}, whose weights are stale or of another rank")
    for count in facts.heads:
        if chosen := groups(found, count, width):
            yield Pattern(name="heads", explained=share, first=chosen[0], end=chosen[-1] + 1,
                          words=f"heads {told(chosen)} of {count} are wrong: their weights, or the key and value heads "
                          "that they are given")
    if is_range(found) and len(found) > 1:
        for size in facts.blocks:
            if first % size == 0 and (end % size == 0 or end == width) and size <= len(found) < width:
                yield Pattern(name="quantisation block", explained=share, first=first, end=end,
                              words=f"channels {first} to {end - 1} are wrong, whole blocks of {size}: the scales of "
                              "these blocks")
                break
