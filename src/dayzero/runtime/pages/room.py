"""How a rank's memory is cut: chunks that are all equal, each of which holds blocks of one group at a time and goes to
another group when it is empty. So every group can use all of the memory, and within a chunk a layer's blocks lie one
behind the other. States, which may be long beside the memory, lie in several chunks, each layer's in one of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat

import msgspec

from dayzero.errors import UsageError
from dayzero.units import format_bytes

from .kinds import Group

Parts = Mapping[Group, Sequence[int]]
"""Bytes that one block (slot) of a group takes in each of its tensors on this rank."""
ALIGNED = 64
"""Bytes of which each tensor's place in a chunk begins at a multiple."""
_FEWEST, _MOST, _TRIED = 60, 800, 48
_BESIDE = 48
"""Lengths of a block that a sequence has at least, so that half a block is about 1 % of it."""


class Room(msgspec.Struct, frozen=True, array_like=True):
    """One rank's memory."""

    chunks: int
    holds: tuple[int, ...]
    """Blocks of each group that a chunk has room for; 0 where the rank keeps nothing of the group."""
    spans: tuple[int, ...] = ()
    """Chunks that a block of each group takes, which then holds nothing else; empty: one."""

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Room:
        """From its `numbers`."""
        chunks, *rest = numbers
        return cls(chunks, tuple(rest[:len(rest) // 2]), tuple(rest[len(rest) // 2:]))

    @property
    def numbers(self) -> tuple[int, ...]:
        """All of it, for other ranks."""
        return self.chunks, *self.holds, *(self.span(group) for group in range(len(self.holds)))

    def span(self, group: int) -> int:
        """Chunks that a block of one group takes."""
        return self.spans[group] if self.spans else 1

    def fits(self, counts: Sequence[int]) -> bool:
        """Whether there is room for so many blocks of each group."""
        return sum(-(-count // holds) * span for count, holds, span in zip(
            counts, self.holds, self.spans or repeat(1), strict=False) if holds) <= self.chunks


def chunk_bytes(room: Room, parts: Parts, block_tokens: int) -> int:
    """Bytes of a chunk on this rank. A token of any tensor lies at a multiple of its own size from that tensor's first
    one, so that one index is enough for all chunks."""
    held = {group: (sizes, room.holds[number], room.span(number))
            for number, (group, sizes) in enumerate(parts.items()) if room.holds[number]}
    need = max((_need(sizes, holds) if span == 1 else _shortest(sizes, span) for sizes, holds, span in held.values()),
               default=0)
    return need if room.chunks == 1 else _rounded(need, _step({group: each[0] for group, each in held.items()},
                                                              block_tokens))


def units(sizes: Sequence[int], span: int) -> tuple[int, ...]:
    """For each tensor of a block that takes `span` chunks, which of these it lies in: neighbours together, none of the
    chunks longer than it must be."""
    return _units(sizes, _shortest(sizes, span))


def _units(sizes: Sequence[int], length: int) -> tuple[int, ...]:
    made, unit, used = [], 0, 0
    for size in (_rounded(each, ALIGNED) for each in sizes):
        if used + size > length and used:
            unit, used = unit + 1, 0
        used += size
        made.append(unit)
    return tuple(made)


def _shortest(sizes: Sequence[int], span: int) -> int:
    """Bytes of a chunk, so that a block's tensors fit into `span` of them."""
    steps = range(max(_rounded(each, ALIGNED) for each in sizes), _need(sizes, 1) + 1, ALIGNED)
    return steps[bisect_left(steps, True, key=lambda length: _units(sizes, length)[-1] < span)]


def block_tokens(lengths: Sequence[int]) -> int:
    """Tokens of a block for sequences of these lengths: of the last one half is empty, so it is short beside them."""
    mean = sum(lengths) / len(lengths)
    return next((size for size in (16, 8) if size * _BESIDE <= mean), 4)


def cut(parts: Parts, memory: int, *, block_tokens: int, lengths: Sequence[int], sequences: int = 0,
        chunk: int = 512) -> Room:
    """The room that `memory` bytes give, or less where `sequences` at a time need less. `lengths`: tokens that
    sequences have at their end; `chunk`: tokens computed at a time.

    Chunks are as long as keeps what is lost small: what a chunk's blocks leave of it, and half a chunk of each group.
    Raises UsageError when not even the longest sequence fits alone.
    """
    kept = {group: tuple(sizes) for group, sizes in parts.items() if sum(sizes)}
    longest = {group: group.most(max(lengths), chunk, block_tokens) for group in kept}
    together = sorted(lengths)[-sequences:] if sequences else lengths
    wanted = {group: max(longest[group], sum(group.most(each, block_tokens, block_tokens) for each in together))
              for group in kept}
    found = None
    if len(kept) < 2:
        found = _single(kept, memory, wanted, sequences)
    elif limit := min(memory, 2 * _bytes(kept, wanted)) if sequences else memory:
        found = _several(kept, limit, memory, wanted, sequences, _step(kept, block_tokens))
    if found is None or not found.fits([longest[group] for group in kept]):
        raise UsageError(f"a cache of {format_bytes(memory)} does not hold one sequence of {max(lengths)} tokens: it "
                         f"takes {format_bytes(_bytes(kept, longest))}", "give it more memory, or allow fewer tokens")
    holds = dict(zip(kept, found.holds, strict=True))
    spans = {group: found.span(number) for number, group in enumerate(kept)}
    return Room(found.chunks, tuple(holds.get(group, 0) for group in parts),
                tuple(spans.get(group, 1) for group in parts) if found.spans else ())


def _single(kept: Parts, memory: int, wanted: Mapping[Group, int], sequences: int) -> Room:
    """One chunk for the one group, if any."""
    return Room(1, tuple(min(_holds(sizes, memory), wanted[group]) if sequences else _holds(sizes, memory)
                         for group, sizes in kept.items()))


def _several(kept: Parts, limit: int, memory: int, wanted: Mapping[Group, int], sequences: int, step: int
             ) -> Room | None:
    whole = sum(wanted[group] * sum(sizes) for group, sizes in kept.items())
    best, least = None, math.inf
    for size in _sizes(kept, limit, step):
        ways = [_way(group, sizes, size) for group, sizes in kept.items()]
        if not all(holds for holds, _ in ways) or size > memory:
            continue
        lost = (memory % size) / memory
        for (group, sizes), (holds, span) in zip(kept.items(), ways, strict=True):
            block = sum(sizes)
            lost += wanted[group] * block / whole * (1 - holds * block / (span * size))
            lost += (holds - 1) * block / 2 / limit
        if lost < least:
            holds_of, spans = zip(*ways, strict=True)
            best, least = Room(memory // size, holds_of, spans if max(spans) > 1 else ()), lost
    if best is None or not sequences:
        return best
    need = sum(-(-wanted[group] // best.holds[number]) * best.span(number) for number, group in enumerate(kept))
    return msgspec.structs.replace(best, chunks=min(best.chunks, need))


def _way(group: Group, sizes: Sequence[int], size: int) -> tuple[int, int]:
    """(blocks that a chunk of `size` bytes holds, chunks that a block takes); (0, 1): neither."""
    holds = _holds(sizes, size)
    if holds or group.window is not None or max(sizes) > size:
        return holds, 1
    return 1, _units(sizes, size)[-1] + 1


def _sizes(kept: Parts, limit: int, step: int) -> Iterator[int]:
    """Lengths of a chunk to look at: those that hold a whole number of some group's blocks, or a whole part of one."""
    shortest = max(_rounded(max(sizes), ALIGNED) if group.window is None else _need(sizes, 1)
                   for group, sizes in kept.items())
    low, high = max(shortest, limit // _MOST), max(shortest, limit // _FEWEST)
    for group, sizes in kept.items():
        block = sum(sizes)
        first, last = -(-low // block), high // block + 1
        for count in range(first, last + 1, max(1, (last - first) // _TRIED)):
            yield _rounded(_need(sizes, count), step)
        if group.window is None:
            first, last = max(2, block // high), min(block // low + 1, len(sizes))
            for span in range(first, last + 1, max(1, (last - first) // _TRIED)):
                yield _rounded(_shortest(sizes, span), step)


def _step(parts: Parts, block_tokens: int) -> int:
    """Bytes of which every token's row is a divisor."""
    rows = {size // group.tokens(block_tokens) for group, sizes in parts.items() if group.window is not None
            for size in sizes if size}
    return math.lcm(ALIGNED, *rows)


def _need(sizes: Sequence[int], count: int) -> int:
    return sum(_rounded(count * size, ALIGNED) for size in sizes)


def _holds(sizes: Sequence[int], memory: int) -> int:
    """Blocks for which the memory is enough."""
    count = memory // sum(sizes)
    while count and _need(sizes, count) > memory:
        count -= 1
    return count


def _bytes(kept: Parts, counts: Mapping[Group, int]) -> int:
    return sum(_need(sizes, counts[group]) for group, sizes in kept.items())


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step
