"""Who owns which block, decided in one place: growth, sharing of common beginnings, copies before a write, trimming
behind windows. What it decides is collected for the next Step; it has no tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from .kinds import ALL, Group
from .room import Room
from .step import Change, Copied, Dropped, Freed, Grown, Trimmed
from .stock import Key, Stock


@dataclass
class _Held:
    """One group's blocks of a sequence, from number `first` on."""

    first: int = 0
    blocks: list[int] = field(default_factory=list)


class Ledger:
    """`rooms`: the memories of all ranks; groups share each of them. `share`: find sequences that begin alike."""

    def __init__(self, groups: Sequence[Group], rooms: Iterable[Room], *, block_tokens: int,
                 share: bool = True) -> None:
        self.groups, self.block_tokens, self.share = tuple(groups), block_tokens, share
        self.stock = Stock(len(self.groups), dict.fromkeys(rooms))
        self.changes: list[Change] = []
        # Windows are full most of the time, so what grows is the groups without one, if there are any.
        grows = [group.window == ALL for group in self.groups]
        self._grows = grows if any(grows) else [group.window is not None for group in self.groups]
        self._sizes = tuple(group.tokens(block_tokens) for group in self.groups)
        self._held: dict[int, list[_Held]] = {}
        self._chains: dict[int, list[Key]] = {}

    def take_changes(self) -> tuple[Change, ...]:
        """All since the last time, in the order in which they were decided."""
        changes, self.changes = self.changes, []
        return tuple(changes)

    # room

    def possible(self, tokens: int, chunk: int) -> bool:
        """Whether a sequence of so many tokens fits when it is alone, computed `chunk` tokens at a time."""
        most = [group.most(tokens, chunk, self.block_tokens) for group in self.groups]
        return all(room.fits(most) for room in self.stock.rooms)

    def admits(self, tokens: int, chunk: int, *, spare: int) -> bool:
        """Whether a sequence that shares nothing fits beside the others, and `spare` blocks would be left for what they
        grow by."""
        return self.stock.fits([group.most(tokens, chunk, self.block_tokens) + spare * grows
                                for group, grows in zip(self.groups, self._grows, strict=True)])

    def fits(self, sequence: int, tokens: int, spare: int = 0) -> bool:
        """Whether the sequence could grow to so many tokens, and `spare` blocks would be left."""
        need = [self._missing(number, each, tokens) + self._shares_last(number, each)
                for number, each in enumerate(self._of(sequence))]
        return not any(need) or self.stock.fits([count + spare * grows
                                                 for count, grows in zip(need, self._grows, strict=True)])

    def _missing(self, number: int, held: _Held, tokens: int) -> int:
        size = self._sizes[number]
        return max(0, -(-tokens // size) - held.first - len(held.blocks)) if size else 1 - len(held.blocks)

    def _shares_last(self, number: int, held: _Held) -> bool:
        return self._sizes[number] > 0 and bool(held.blocks) and self.stock.spaces[number].shared(held.blocks[-1])

    def _of(self, sequence: int) -> list[_Held]:
        return self._held.get(sequence) or [_Held() for _ in self.groups]

    def _take(self, number: int) -> int:
        block, evicted = self.stock.take(number)
        self.changes += [Freed(group, (each,)) for group, each in evicted]
        return block

    def _release(self, number: int, blocks: Iterable[int]) -> None:
        if freed := self.stock.release(number, blocks):
            self.changes.append(Freed(number, freed))

    # growth

    def grow(self, sequence: int, computed: int, tokens: int, *, spare: int = 0) -> bool:
        """Blocks for the tokens up to `tokens`, of which `computed` are there. False, and nothing changed, when there
        is no room for them and `spare` more."""
        self.trim(sequence, computed)
        if not self.fits(sequence, tokens, spare):
            return False
        held = self._held.setdefault(sequence, [_Held() for _ in self.groups])
        for number, each in enumerate(held):
            self._own_last(number, sequence, each, computed)
            self._give(number, sequence, each, self._missing(number, each, tokens))
        return True

    def _give(self, number: int, sequence: int, held: _Held, count: int) -> None:
        if count > 0:
            at, blocks = held.first + len(held.blocks), tuple(self._take(number) for _ in range(count))
            held.blocks += blocks
            self.changes.append(Grown(sequence, number, blocks, at))

    def _own_last(self, number: int, sequence: int, held: _Held, computed: int) -> None:
        """A block that others read too is copied before more tokens are written into it."""
        size = self._sizes[number]
        if not size or computed % size == 0 or not self._shares_last(number, held):
            return
        last, new = held.blocks[-1], self._take(number)
        held.blocks[-1] = new
        self.changes += [Copied(number, last, new), Grown(sequence, number, (new,), held.first + len(held.blocks) - 1)]
        self._release(number, (last,))

    def trim(self, sequence: int, computed: int) -> None:
        """Give back what no query from here on sees."""
        for number, group in enumerate(self.groups):
            if not group.window or sequence not in self._held:
                continue
            held = self._held[sequence][number]
            count = min((computed - group.window + 1) // self._sizes[number] - held.first, len(held.blocks))
            if count > 0:
                gone = held.blocks[:count]
                del held.blocks[:count]
                held.first += count
                self.changes.append(Trimmed(sequence, number, count))
                self._release(number, gone)

    def drop(self, sequence: int) -> None:
        """The sequence is gone, or its blocks are."""
        if self._let_go(sequence):
            self.changes.append(Dropped(sequence))

    def _let_go(self, sequence: int) -> bool:
        held = self._held.pop(sequence, None)
        self._chains.pop(sequence, None)
        for number, each in enumerate(held or ()):
            self._release(number, reversed(each.blocks))  # so that beginnings are kept the longest
        return held is not None

    def spill(self, sequence: int) -> list[int]:
        """Its blocks are given back, but it will want as many again. The first block number of each group."""
        firsts = [each.first for each in self._of(sequence)]
        # It leaves as it was before this step: what this step has given to it counts no more.
        self.changes = [each for each in self.changes
                        if not (isinstance(each, Grown | Trimmed) and each.sequence == sequence)]
        self._let_go(sequence)
        return firsts

    def revive(self, sequence: int, firsts: Sequence[int], tokens: int) -> bool:
        """Blocks for a spilled sequence. False when there is no room."""
        held = [_Held(first) for first in firsts]
        self._held[sequence] = held
        if not self.fits(sequence, tokens):
            del self._held[sequence]
            return False
        for number, each in enumerate(held):
            self._give(number, sequence, each, self._missing(number, each, tokens))
        return True

    def fork(self, sequence: int, into: int) -> bool:
        """Another sequence with the same past; blocks are shared until one of them writes. False when there is no room
        for its states."""
        if not self.stock.fits([int(group.window is None) for group in self.groups]):
            return False
        self._held[into] = []
        for number, (each, group) in enumerate(zip(self._held[sequence], self.groups, strict=True)):
            held = _Held(each.first, [] if group.window is None else list(each.blocks))
            self._held[into].append(held)
            for block in held.blocks:
                self.stock.spaces[number].share(block)
            if group.window is None:
                self._give(number, into, held, 1)
                self.changes.append(Copied(number, each.blocks[0], held.blocks[0]))
            else:
                self.changes.append(Grown(into, number, tuple(held.blocks), held.first))
        self._chains[into] = list(self._chains.get(sequence, ()))
        return True

    # common beginnings

    def adopt(self, sequence: int, tokens: Sequence[int]) -> int:
        """Begin a sequence with blocks that another one computed. Tokens that need not be computed: full blocks, never
        all, because the last token's logits are wanted."""
        if not self.share:
            return 0
        chain = self.chain(tokens)
        count = self._known(chain)
        return count * self.block_tokens if count and self._take_over(sequence, chain[:count]) else 0

    def chain(self, tokens: Sequence[int]) -> list[Key]:
        """Names of the full blocks that another sequence can take over."""
        return self._extend([], tokens, (len(tokens) - 1) // self.block_tokens)

    def _known(self, chain: Sequence[Key]) -> int:
        """Blocks at the start for which every group has what goes on from there."""
        for count in range(len(chain), 0, -1):
            if all(self._has(number, group, chain[:count]) for number, group in enumerate(self.groups)):
                return count
        return 0

    def _has(self, number: int, group: Group, chain: Sequence[Key]) -> bool:
        space = self.stock.spaces[number]
        if group.window is None:
            return space.find(chain[-1]) is not None
        return all(space.find(key) is not None for key in self._keys(number, chain, self._first(number, chain)))

    def _first(self, number: int, chain: Sequence[Key]) -> int:
        """The group's first block that a query behind the chain sees."""
        window, tokens = self.groups[number].window, len(chain) * self.block_tokens
        return max(0, (tokens - window + 1) // self._sizes[number]) if window else 0

    def _keys(self, number: int, chain: Sequence[Key], first: int) -> Iterator[Key]:
        """Names of the group's blocks from that one to the chain's end: those of smaller blocks are told apart."""
        parts = self.block_tokens // self._sizes[number]
        for index in range(first, len(chain) * parts):
            yield chain[index // parts] + (index % parts).to_bytes(2, "big")

    def _take_over(self, sequence: int, chain: Sequence[Key]) -> bool:
        """Whether there was room for the states' slots."""
        held = [_Held() for _ in self.groups]
        shared: list[tuple[int, int]] = []
        for number, group in enumerate(self.groups):
            space, first = self.stock.spaces[number], 0
            if group.window is None:
                keys: list[Key] = [chain[-1]]
            else:
                first = self._first(number, chain)
                keys = list(self._keys(number, chain, first))
            found = [block for key in keys if (block := space.find(key)) is not None]
            for block in found:
                space.share(block)  # so that none of them is given up for another
                shared.append((number, block))
            held[number] = _Held(first, found)
        if not self.stock.fits([int(group.window is None) for group in self.groups]):
            for number, block in shared:
                self._release(number, (block,))
            return False
        self._held[sequence], self._chains[sequence] = held, list(chain)
        for number, each in enumerate(held):
            if self._sizes[number]:
                self.changes.append(Grown(sequence, number, tuple(each.blocks), each.first))
                continue
            source = each.blocks.pop()
            self._give(number, sequence, each, 1)
            self.changes.append(Copied(number, source, each.blocks[0]))
            self._release(number, (source,))
        return True

    def offer(self, sequence: int, tokens: Sequence[int], computed: int) -> None:
        """Let blocks that are full by now be found by what they and all before them hold."""
        if not self.share:
            return
        chain = self._chains.setdefault(sequence, [])
        old = len(chain)
        if computed // self.block_tokens == old:
            return
        self._chains[sequence] = chain = self._extend(chain, tokens, computed // self.block_tokens)
        for number, group in enumerate(self.groups):
            if group.window is not None:
                held, parts = self._held[sequence][number], self.block_tokens // self._sizes[number]
                first = max(old * parts, held.first)
                for index, key in enumerate(self._keys(number, chain, first), first - held.first):
                    self.stock.spaces[number].name(held.blocks[index], key)

    def snapshot(self, sequence: int) -> None:
        """Keep the states as they are after the last full block, for others that begin alike."""
        for number, group in enumerate(self.groups):
            chain, space = self._chains.get(sequence), self.stock.spaces[number]
            one = [int(each is group) for each in self.groups]
            if group.window is not None or not chain or space.find(chain[-1]) is not None or not self.stock.fits(one):
                continue
            slot = self._take(number)
            space.name(slot, chain[-1])
            self.changes.append(Copied(number, self._held[sequence][number].blocks[0], slot))
            self._release(number, (slot,))

    def _extend(self, chain: Sequence[Key], tokens: Sequence[int], blocks: int) -> list[Key]:
        """A name for each full block: a digest of its tokens and of the name before."""
        names, size = list(chain), self.block_tokens
        for index in range(len(names), blocks):
            data = np.asarray(tokens[index * size:(index + 1) * size], np.int64).tobytes()
            names.append(hashlib.blake2b((names[-1] if names else b"") + data, digest_size=16).digest())
        return names

    # figures

    def owned(self) -> list[int]:
        """Blocks of each group that sequences hold; shared ones count once."""
        return [space.owned for space in self.stock.spaces]

    def needed(self, computed: int) -> list[int]:
        """Tokens of each group (1 for states) that later queries of a sequence read."""
        return [1 if group.window is None else min(computed, group.window - 1) if group.window else computed
                for group in self.groups]
