"""Blocks are owned as often as they are used, and a table and a rank's slots are what the steps told them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.runtime.pages.frames import Frames
from dayzero.runtime.pages.kinds import ALL, Group
from dayzero.runtime.pages.ledger import Ledger
from dayzero.runtime.pages.room import Room
from dayzero.runtime.pages.step import Change, Copied, Freed, Grown
from dayzero.runtime.pages.stock import Stock
from dayzero.runtime.pages.table import Table

_GROUPS = (Group(ALL), Group(6), Group(None))
_ONE_CHUNK_EACH = Room(3, (100, 100, 100))


def _ledger(*rooms: Room, share: bool = True) -> Ledger:
    return Ledger(_GROUPS, rooms or (_ONE_CHUNK_EACH,), block_tokens=4, share=share)


def _room(chunks: int, holds: tuple[int, int, int], span: int) -> Room:
    """States take `span` chunks."""
    return Room(chunks, holds) if span == 1 else Room(chunks, (*holds[:2], 1), (1, 1, span))


class Rank:
    """Where one rank has what it was told about, and which block's content lies there."""

    def __init__(self, room: Room) -> None:
        self.room, self.frames, self.moved = room, Frames(room, self._move), 0
        self.content: dict[tuple[int, int], int] = {}

    def _move(self, group: int, old: list[int], new: list[int]) -> None:
        self.moved += len(old)
        held = [self.content[group, slot] for slot in old]
        self.content.update({(group, slot): block for slot, block in zip(new, held, strict=True)})

    def apply(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            for block in change.blocks if isinstance(change, Grown) else (
                    (change.target,) if isinstance(change, Copied) else ()):
                self.frames.put(change.group, block)
                self.content |= dict.fromkeys(((change.group, slot) for slot in
                                               self.frames.slots(change.group, block)), block)
            if isinstance(change, Freed):
                self.frames.drop(change.group, change.blocks)

    def check(self, ledger: Ledger) -> None:
        """Blocks that sequences hold have slots of their own, in chunks of their group, and keep their content."""
        owners: dict[int, int] = {}
        for number, holds in enumerate(self.room.holds):
            held = {block for each in ledger._held.values() for block in each[number].blocks}
            slots = {slot: block for block in held for slot in self.frames.slots(number, block)}
            assert len(slots) == len(held) * self.room.span(number)
            for slot, block in slots.items():
                assert 0 <= slot < self.room.chunks * holds
                assert owners.setdefault(slot // holds, number) == number
                assert self.content[number, slot] == block


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["grow", "drop", "spill", "fork"]), st.integers(1, 9)),
                max_size=80),
       st.lists(st.builds(_room, st.integers(5, 14), st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 3)),
                          st.integers(1, 3)), min_size=1, max_size=2))
def test_no_block_is_lost_or_given_twice(actions: list[tuple[int, str, int]], rooms: list[Room]) -> None:
    ledger = _ledger(*rooms)
    ranks = [Rank(room) for room in rooms]
    computed: dict[int, int] = {}
    tokens = list(range(400))
    for sequence, action, more in actions:
        if action == "grow":
            if sequence not in computed:
                computed[sequence] = ledger.adopt(sequence, tokens[:more + 1])
            if ledger.grow(sequence, computed[sequence], computed[sequence] + more):
                computed[sequence] += more
                ledger.offer(sequence, tokens, computed[sequence])
                ledger.snapshot(sequence)
        elif action == "fork":
            other = next((each for each in computed if each != sequence and each in ledger._held), None)
            if sequence not in ledger._held and other is not None and ledger.fork(other, sequence):
                computed[sequence] = computed[other]
        elif sequence in computed:
            ledger.spill(sequence) if action == "spill" and sequence in ledger._held else ledger.drop(sequence)
            del computed[sequence]
        for number, space in enumerate(ledger.stock.spaces):
            held = [block for each in ledger._held.values() for block in each[number].blocks]
            assert space.owned == len(set(held))
            assert all(space._owners[block] == held.count(block) for block in held)
        assert all(rank.room.fits([space.alive for space in ledger.stock.spaces]) for rank in ranks)
        changes = ledger.take_changes()
        for rank in ranks:
            rank.apply(changes)
            rank.check(ledger)


def test_a_chunk_is_emptied_for_another_group() -> None:
    rank = Rank(Room(2, (3, 5)))
    rank.apply((Grown(1, 0, (0, 1, 2, 3)),))  # the fourth is in the second chunk
    rank.apply((Freed(0, (1,)), Grown(2, 1, (0,))))
    assert rank.moved == 1
    assert [rank.content[0, rank.frames.slot(0, block)] for block in (0, 2, 3)] == [0, 2, 3]
    assert {rank.frames.slot(0, block) // 3 for block in (0, 2, 3)} == {0}
    assert rank.frames.slot(1, 0) == 5


def test_blocks_of_a_sequence_lie_one_behind_the_other() -> None:
    frames = Frames(Room(1, (8,)), lambda *_: None)
    frames.put(0, 7)
    frames.put(0, 3, after=None)
    frames.put(0, 5, after=7)  # taken: the next free one
    frames.put(0, 6, after=5)
    assert [frames.slot(0, block) for block in (7, 3, 5, 6)] == [0, 1, 2, 3]
    frames.drop(0, (3,))
    frames.put(0, 9, after=6)
    assert frames.slot(0, 9) == 4
    assert frames.rows(0, 16, 128)[[7, 5, 6, 9]].tolist() == [0, 32, 48, 64]


def test_a_window_gives_back_what_it_no_longer_sees() -> None:
    ledger = _ledger(share=False)
    for computed in range(0, 28, 4):
        assert ledger.grow(1, computed, computed + 4)
    # Its blocks have one token. A query at 24 sees 5 before it, and the last growth added 4.
    assert [len(each.blocks) for each in ledger._held[1]] == [7, 9, 1]
    ledger.trim(1, 28)
    assert [(each.first, len(each.blocks)) for each in ledger._held[1][:2]] == [(0, 7), (23, 5)]
    assert ledger.needed(28) == [28, 5, 1]


def test_blocks_are_the_shorter_the_shorter_the_window() -> None:
    windows = (ALL, 4096, 512, 300, 128, 64, 20, None)
    assert [Group(window).tokens(16) for window in windows] == [16, 16, 8, 4, 2, 1, 1, 0]
    assert Group(128).most(1000, 50, 16) == -(-177 // 2) + 1


def test_a_shared_block_is_copied_before_it_is_written() -> None:
    ledger = _ledger()
    ledger.grow(1, 0, 6)
    assert ledger.fork(1, 2)
    last = ledger._held[1][0].blocks[1]
    ledger.take_changes()
    assert ledger.grow(2, 6, 7)
    copied = [each for each in ledger.take_changes() if isinstance(each, Copied)]
    assert [(each.group, each.source) for each in copied] == [(0, last)]  # blocks of the window are full
    assert ledger._held[1][0].blocks[0] == ledger._held[2][0].blocks[0]
    assert ledger._held[1][0].blocks[1] != ledger._held[2][0].blocks[1]


def test_beginnings_are_found_only_with_all_that_goes_on_from_them() -> None:
    ledger = _ledger()
    tokens = list(range(13))
    ledger.grow(1, 0, 12)
    ledger.offer(1, tokens, 12)
    assert ledger.adopt(2, tokens) == 0  # the states after 12 tokens are not kept yet
    ledger.snapshot(1)
    assert ledger.adopt(2, tokens) == 12
    assert [(each.first, len(each.blocks)) for each in ledger._held[2]] == [(0, 3), (7, 5), (0, 1)]
    assert ledger.adopt(3, [*tokens[:11], 99, 98]) == 0


def test_a_named_block_is_found_until_its_place_is_needed() -> None:
    stock = Stock(2, [Room(2, (1, 1))])
    first, _ = stock.take(0)
    stock.spaces[0].name(first, b"x")
    assert stock.release(0, (first,)) == ()
    assert stock.spaces[0].find(b"x") == first
    assert stock.take(1) == (0, [])
    assert stock.fits((1, 0)) and not stock.fits((1, 1))
    assert stock.take(1) == (1, [(0, first)])  # another group's place
    assert stock.spaces[0].find(b"x") is None
    assert not stock.fits((1, 0))


def test_places_follow_the_table() -> None:
    table, rows = Table(), Frames(Room(1, (10,)), lambda *_: None)
    for block in range(10):
        rows.put(0, block)
    at = rows.rows(0, 4, 40)
    table.put(2, [6, 7, 2])
    assert table.places(9, 14, 4, at).tolist() == [25, 26, 27, 28, 29]
    assert table.run(9, 14, 4, at) == 25
    assert table.run(12, 17, 4, at) is None
    assert (table.before(2), table.before(3), table.before(5)) == (None, 6, 2)
    table.trim(1)
    table.put(4, [8, 9])
    assert table.places(15, 18, 4, at).tolist() == [31, 32, 33]


