"""Numbers of blocks: free, owned by one or several sequences, or unowned but still worth something; and whether all
that are not free fit into every rank's memory, which groups share.

Numbers are names: where a block lies is each rank's own affair.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from .room import Room

Key = bytes


class Space:
    """One group's numbers."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._made = 0
        self._owners: dict[int, int] = {}
        self._named: dict[Key, int] = {}
        self._names: dict[int, Key] = {}
        self.unowned: OrderedDict[int, int] = OrderedDict()
        """Blocks with a name and without an owner, and when they lost it; the oldest first."""

    @property
    def owned(self) -> int:
        """Blocks that at least one sequence holds."""
        return len(self._owners)

    @property
    def alive(self) -> int:
        """Blocks whose content is kept."""
        return len(self._owners) + len(self.unowned)

    def take(self) -> int:
        """A free number, with one owner."""
        if self._free:
            block = self._free.pop()
        else:
            block, self._made = self._made, self._made + 1
        self._owners[block] = 1
        return block

    def evict(self) -> int:
        """The unowned block that has been so for longest is free now."""
        block, _ = self.unowned.popitem(last=False)
        del self._named[self._names.pop(block)]
        self._free.append(block)
        return block

    def share(self, block: int) -> None:
        """One more owner."""
        self._owners[block] = self._owners.get(block, 0) + 1
        self.unowned.pop(block, None)

    def shared(self, block: int) -> bool:
        """Whether writing to the block would change what another sequence reads."""
        return self._owners[block] > 1

    def release(self, block: int, now: int) -> bool:
        """One owner less; whether it is free now. A block with a name can be found until its place is needed."""
        self._owners[block] -= 1
        if self._owners[block]:
            return False
        del self._owners[block]
        if block in self._names:
            self.unowned[block] = now
            return False
        self._free.append(block)
        return True

    def name(self, block: int, key: Key) -> None:
        """Let the block's content be found. The first block of a name keeps it."""
        if key not in self._named and block not in self._names:
            self._named[key], self._names[block] = block, key

    def find(self, key: Key) -> int | None:
        """The block of that name."""
        return self._named.get(key)


class Stock:
    """All groups' numbers. `rooms`: the ranks' memories that differ."""

    def __init__(self, groups: int, rooms: Iterable[Room]) -> None:
        self.rooms = tuple(rooms)
        self.spaces = tuple(Space() for _ in range(groups))
        self._now = 0

    def fits(self, more: Sequence[int]) -> bool:
        """Whether so many more blocks of each group can be taken, once nothing is kept that has no owner."""
        counts = [space.owned + each for space, each in zip(self.spaces, more, strict=True)]
        return all(room.fits(counts) for room in self.rooms)

    def spare(self, group: int) -> bool:
        """Whether another block can be taken and all that is kept stays."""
        counts = [space.alive + (number == group) for number, space in enumerate(self.spaces)]
        return all(room.fits(counts) for room in self.rooms)

    def take(self, group: int) -> tuple[int, list[tuple[int, int]]]:
        """A block, for which there has to be room, and the blocks (with their groups) that were given up for it."""
        evicted = []
        while not self.spare(group):
            victim = group if self.spaces[group].unowned else self._oldest()
            evicted.append((victim, self.spaces[victim].evict()))
        return self.spaces[group].take(), evicted

    def _oldest(self) -> int:
        return min((number for number, space in enumerate(self.spaces) if space.unowned),
                   key=lambda number: next(iter(self.spaces[number].unowned.values())))

    def release(self, group: int, blocks: Iterable[int]) -> tuple[int, ...]:
        """One owner less for each; those that are free now."""
        self._now += 1
        return tuple(block for block in blocks if self.spaces[group].release(block, self._now))
