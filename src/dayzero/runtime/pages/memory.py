"""The memory itself: one range of bytes, in which every tensor has its place in each chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from dayzero.runtime.pool import Arena, Block

from .call import Lines
from .kinds import Group
from .room import ALIGNED, Room, chunk_bytes, units
from .states import Slots
from .track import Track


class Memory:
    """`sizes`: bytes of a block of each group in each of its tensors. Tensors are asked for in the order of these."""

    def __init__(self, room: Room, sizes: Mapping[Group, Sequence[int]], block_tokens: int,
                 device: torch.device) -> None:
        self._room, self._block_tokens = room, block_tokens
        self._chunk = chunk_bytes(room, sizes, block_tokens)
        nbytes = room.chunks * self._chunk
        self._arena = Arena(nbytes, device).bytes(Block(0, nbytes, nbytes)) if nbytes else None
        self._places = [iter(_places(each, holds, room.span(number)))
                        for number, (each, holds) in enumerate(zip(sizes.values(), room.holds, strict=True))]

    def tokens(self, track: Track, number: int, group: Group) -> None:
        """Place a tensor that grows by token."""
        _, first = next(self._places[number])
        size, holds = group.tokens(self._block_tokens), self._room.holds[number]
        if track.pool is None or not holds:
            return
        row, columns = track.token_bytes, track.pool.shape[1]
        track.lines = Lines(number, size, self._chunk // row if self._room.chunks > 1 else holds * size)
        rows = (self._room.chunks - 1) * track.lines.in_chunk + holds * size
        track.place(self._typed(track.pool.dtype, first, (rows, columns), (columns, 1)))

    def states(self, slots: Slots, number: int) -> None:
        """Place a state."""
        unit, first = next(self._places[number])
        holds = self._room.holds[number]
        if slots.pool is None or not holds:
            return
        one = slots.pool[0, 0]
        strides = (self._chunk // one.element_size(), one.numel(), *one.contiguous().stride())
        slots.place(self._typed(one.dtype, first, (self._room.chunks, holds, *one.shape), strides), unit)

    def _typed(self, dtype: torch.dtype, first: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
        assert self._arena is not None
        values = self._arena.view(dtype)
        return values.as_strided(shape, strides, values.storage_offset() + first // dtype.itemsize)


def _places(sizes: Sequence[int], holds: int, span: int) -> list[tuple[int, int]]:
    """(which of a block's chunks, first byte there) of each tensor."""
    made: list[tuple[int, int]] = []
    of, at = units(sizes, span) if span > 1 else (0,) * len(sizes), 0
    for unit, size in zip(of, sizes, strict=True):
        at = at if made and made[-1][0] == unit else 0
        made.append((unit, at))
        at += -(-size * holds // ALIGNED) * ALIGNED
    return made
