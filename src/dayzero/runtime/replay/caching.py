"""A model of torch's caching allocator for devices, with and without expandable segments, by its default rules.

Rules as in torch 2.13 (c10/cuda/CUDACachingAllocator.cpp): a request is rounded up to 512 bytes; up to 1 MiB it is
served from segments of 2 MiB, below 10 MiB from segments of 20 MiB, above from one of its own, rounded up to 2 MiB.
Each stream has its own free blocks. Best fit; what remains is split off where it is at least 512 bytes (small) or more
than 1 MiB (large); free neighbours in a segment merge. Where the device is full, segments that are free as a whole go
back to it and the request is tried once more. Expandable segments are one range of addresses for each stream and size,
in which pages of 2 MiB (small) or 20 MiB (large) are mapped at the lowest address that serves; there all remainders of
512 bytes are split off, and free pages go back. What this leaves out: events of other streams, graphs, the options.
Where the device places segments is not known; here, one behind the other.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from dayzero.runtime.pool.base import OutOfMemory, round_up

_MIB = 2**20
_ROUND = 512
_SMALL = _MIB
_SMALL_SEGMENT, _LARGE_SEGMENT, _OWN_SEGMENT = 2 * _MIB, 20 * _MIB, 10 * _MIB


@dataclass(eq=False, slots=True)
class Piece:
    """A range of a segment; `before` and `after` are its neighbours there."""

    start: int
    size: int
    free: Free = field(repr=False)
    allocated: bool = False
    mapped: bool = True
    before: Piece | None = field(default=None, repr=False)
    after: Piece | None = field(default=None, repr=False)


class Free:
    """The free pieces of one stream and one class of sizes, by size and address, and its unmapped ones by address."""

    def __init__(self, small: bool) -> None:
        self.small = small
        self.order: list[tuple[int, int]] = []
        self.pieces: dict[int, Piece] = {}  # by start
        self.unmapped: list[int] = []
        self.absent: dict[int, Piece] = {}  # unmapped ones by start

    def put(self, piece: Piece) -> None:
        """Add a piece that is free, or not mapped."""
        if piece.mapped:
            insort(self.order, (piece.size, piece.start))
            self.pieces[piece.start] = piece
        else:
            insort(self.unmapped, piece.start)
            self.absent[piece.start] = piece

    def drop(self, piece: Piece) -> None:
        """Remove it."""
        if piece.mapped:
            del self.order[bisect_left(self.order, (piece.size, piece.start))], self.pieces[piece.start]
        else:
            del self.unmapped[bisect_left(self.unmapped, piece.start)], self.absent[piece.start]


class CachingModel:
    """What of `capacity` bytes of a device the caching allocator would reserve. One thread."""

    def __init__(self, capacity: int, *, expandable: bool = False) -> None:
        self.capacity, self.expandable = capacity, expandable
        self.reserved = self.peak_reserved = self.allocated = self.releases = 0
        self._pools: dict[tuple[int, bool], Free] = {}
        self._end = 0

    def take(self, nbytes: int, stream: int = 0) -> Piece:
        """Allocate. Raises OutOfMemory."""
        size = round_up(max(nbytes, 1), _ROUND)
        small = size <= _SMALL
        pool = self._pools.setdefault((stream, small), Free(small))
        piece = self._cached(pool, size) or self._new(pool, size)
        if piece is None:
            self._release()
            piece = self._new(pool, size)
        if piece is None:
            raise OutOfMemory(nbytes, self.capacity - self.allocated, self.capacity - self.reserved, self.capacity)
        remaining = piece.size - size
        if remaining >= _ROUND if small or self.expandable else remaining > _SMALL:
            self._cut(piece, size)
        piece.allocated = True
        self.allocated += piece.size
        return piece

    def give(self, piece: Piece) -> None:
        """Free."""
        piece.allocated = False
        self.allocated -= piece.size
        self._merge(piece)

    def _cached(self, pool: Free, size: int) -> Piece | None:
        place = bisect_left(pool.order, (size, 0))
        if place == len(pool.order):
            return None
        if self.expandable:
            while place + 1 < len(pool.order) and self._could_be(pool, place + 1) < self._could_be(pool, place):
                place += 1
        piece = pool.pieces[pool.order[place][1]]
        pool.drop(piece)
        return piece

    def _could_be(self, pool: Free, place: int) -> int:
        """How long a free piece is together with what could be mapped behind it."""
        piece = pool.pieces[pool.order[place][1]]
        return piece.size + (piece.after.size if piece.after and not piece.after.mapped else 0)

    def _new(self, pool: Free, size: int) -> Piece | None:
        if self.expandable:
            return self._grown(pool, size)
        length = _SMALL_SEGMENT if pool.small else _LARGE_SEGMENT if size < _OWN_SEGMENT else round_up(size, 2 * _MIB)
        if not self._reserve(length):
            return None
        piece = Piece(self._end, length, pool)
        self._end += length
        return piece

    def _reserve(self, nbytes: int) -> bool:
        if self.reserved + nbytes > self.capacity:
            return False
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return True

    def _grown(self, pool: Free, size: int) -> Piece | None:
        """A free piece of at least `size`, from pages that are mapped behind what is free already."""
        piece = self._expandable(pool, size)
        if not piece.mapped:
            mapped = self._map(pool, piece, min(piece.size, size))
            if mapped is None:
                return None
            piece = mapped
        while piece.size < size:
            assert piece.after is not None
            mapped = self._map(pool, piece.after, min(size - piece.size, piece.after.size))
            if mapped is None:
                return None
            piece = mapped
        pool.drop(piece)
        return piece

    def _expandable(self, pool: Free, size: int) -> Piece:
        """The lowest piece from which on `size` bytes are free or can be mapped."""
        for start in pool.unmapped:
            first = pool.absent[start]
            if first.before is not None and first.before.mapped and not first.before.allocated:
                first = first.before
            length, piece = 0, first
            while length < size and piece is not None and not piece.allocated:
                length, piece = length + piece.size, piece.after  # type: ignore[assignment]
            if length >= size:
                return first
        # One device's memory and an eighth more, as addresses cost nothing.
        made = Piece(self._end, _pages(self.capacity + self.capacity // 8, _LARGE_SEGMENT), pool, mapped=False)
        self._end += made.size
        pool.put(made)
        return made

    def _map(self, pool: Free, piece: Piece, size: int) -> Piece | None:
        length = _pages(size, _page(pool))
        if not self._reserve(length):
            return None
        pool.drop(piece)
        if piece.size > length:
            self._cut(piece, length)
        piece.mapped = True
        return self._merge(piece)

    def _cut(self, piece: Piece, size: int) -> None:
        """Keep the first `size` bytes of a piece; the others become one that is as free, or as unmapped."""
        rest = Piece(piece.start + size, piece.size - size, piece.free, mapped=piece.mapped, before=piece,
                     after=piece.after)
        if piece.after is not None:
            piece.after.before = rest
        piece.size, piece.after = size, rest
        piece.free.put(rest)

    def _merge(self, piece: Piece) -> Piece:
        """Join a piece with its neighbours that are as free or as unmapped, and keep it."""
        pool = piece.free
        for other in (piece.before, piece.after):
            if other is None or other.allocated or other.mapped != piece.mapped:
                continue
            pool.drop(other)
            first, second = (other, piece) if other is piece.before else (piece, other)
            first.size += second.size
            first.after = second.after
            if second.after is not None:
                second.after.before = first
            piece = first
        pool.put(piece)
        return piece

    def _release(self) -> None:
        """Give back what is free as a whole: segments, or pages."""
        self.releases += 1
        for pool in self._pools.values():
            for piece in list(pool.pieces.values()):
                if self.expandable:
                    self._unmap(pool, piece)
                elif piece.before is None and piece.after is None:
                    pool.drop(piece)
                    self.reserved -= piece.size

    def _unmap(self, pool: Free, piece: Piece) -> None:
        page = _page(pool)
        begin, end = _pages(piece.start, page), (piece.start + piece.size) // page * page
        if end <= begin:
            return
        pool.drop(piece)
        if end < piece.start + piece.size:
            self._cut(piece, end - piece.start)
        if begin > piece.start:
            self._cut(piece, begin - piece.start)
            pool.put(piece)
            assert piece.after is not None
            piece = piece.after
            pool.drop(piece)
        self.reserved -= piece.size
        piece.mapped = False
        self._merge(piece)


def _page(pool: Free) -> int:
    return _SMALL_SEGMENT if pool.small else _LARGE_SEGMENT


def _pages(nbytes: int, page: int) -> int:
    """Bytes of the pages that hold so many."""
    return -(-nbytes // page) * page

