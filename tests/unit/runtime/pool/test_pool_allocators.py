"""The rules that every allocator keeps, under random schedules."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.errors import StageError, UsageError
from dayzero.runtime.pool import DEFAULT, Allocator, BestFit, Block, BlockError, Buddy, OutOfMemory, Slab, allocator

KINDS: dict[str, Callable[[int, int], Allocator]] = {
    "buddy": lambda capacity, alignment: Buddy(capacity, alignment=alignment),
    "best fit": lambda capacity, alignment: BestFit(capacity, alignment=alignment),
    "best fit, two ends": lambda capacity, alignment: BestFit(capacity, alignment=alignment, small=100),
    "slab": lambda capacity, alignment: Slab(capacity, 96, alignment=alignment),
}
SCHEDULE = st.lists(st.tuples(st.integers(1, 400), st.booleans(), st.integers(0, 1000)), max_size=120)


def largest(pool: Allocator) -> int:
    """The longest free range, found by what `take` grants: independent of the accounts."""
    return max((size for size in range(1, pool.capacity + 1) if pool.fits(size)), default=0)


@pytest.mark.parametrize("kind", KINDS)
@given(schedule=SCHEDULE, capacity=st.integers(200, 3000), alignment=st.sampled_from([1, 2, 16, 64]))
@settings(max_examples=150, deadline=None)
def test_blocks_never_overlap_and_the_accounts_are_exact(
        kind: str, schedule: list[tuple[int, bool, int]], capacity: int, alignment: int) -> None:
    pool = KINDS[kind](capacity, alignment)
    whole = pool.statistics().largest_free
    used = bytearray(capacity)
    live: list[Block] = []
    most = refused = 0
    for nbytes, take, which in schedule:
        if take or not live:
            try:
                block = pool.take(nbytes)
            except OutOfMemory as error:
                refused += 1
                assert (error.asked, error.capacity, error.free) == (nbytes, capacity, used.count(0))
                continue
            assert block.size >= block.requested == nbytes
            assert block.offset % alignment == 0
            assert not any(used[block.offset : block.offset + block.size])
            assert block.offset + block.size <= capacity
            used[block.offset : block.offset + block.size] = b"\1" * block.size
            live.append(block)
        else:
            block = live.pop(which % len(live))
            used[block.offset : block.offset + block.size] = bytes(block.size)
            pool.give(block)
        most = max(most, used.count(1))
        now = pool.statistics()
        assert (now.allocated, now.free, now.live) == (used.count(1), used.count(0), len(live))
        assert now.requested == sum(block.requested for block in live)
    now = pool.statistics()
    assert (now.peak_allocated, now.refusals, now.takes - now.gives) == (most, refused, len(live))
    for block in live:
        pool.give(block)
    now = pool.statistics()
    assert (now.allocated, now.requested, now.largest_free) == (0, 0, whole)


@pytest.mark.parametrize("kind", KINDS)
@given(schedule=SCHEDULE, alignment=st.sampled_from([1, 16]))
@settings(max_examples=40, deadline=None)
def test_fits_says_what_take_does(kind: str, schedule: list[tuple[int, bool, int]], alignment: int) -> None:
    pool = KINDS[kind](1000, alignment)
    live: list[Block] = []
    for nbytes, take, which in schedule:
        if take or not live:
            expected = pool.fits(nbytes)
            try:
                live.append(pool.take(nbytes))
            except OutOfMemory:
                assert not expected
            else:
                assert expected
        else:
            pool.give(live.pop(which % len(live)))
    assert largest(pool) == pool.statistics().largest_free


@given(order=st.permutations(range(16)))
@settings(max_examples=60, deadline=None)
def test_all_neighbours_become_one_block_again(order: list[int]) -> None:
    for pool in (Buddy(4096, alignment=256), BestFit(4096, alignment=256)):
        blocks = [pool.take(256) for _ in range(16)]
        assert not pool.fits(1)
        for index in order:
            pool.give(blocks[index])
        assert pool.take(4096) == Block(0, 4096, 4096)


def test_buddy_rounds_up_and_merges_only_buddies() -> None:
    pool = Buddy(1024, alignment=128)
    first, second, third = (pool.take(200) for _ in range(3))
    assert [(one.offset, one.size) for one in (first, second, third)] == [(0, 256), (256, 256), (512, 256)]
    pool.give(second)
    pool.give(third)  # neighbours of 512 bytes, but at an odd multiple of 256: not one block
    assert pool.statistics().largest_free == 512  # 512 to 1024
    assert pool.statistics().internal == 1 - 200 / 256
    assert pool.statistics().external == 1 - 512 / 768


def test_buddy_of_a_size_that_is_no_power_of_two_uses_all_of_it() -> None:
    pool = Buddy(7 * 128, alignment=128)
    sizes = [pool.take(size) for size in (512, 256, 128)]
    assert [block.offset for block in sizes] == [0, 512, 768]
    for block in sizes:
        pool.give(block)
    assert pool.statistics().largest_free == 512  # the trees stay apart


def test_best_fit_takes_the_shortest_range_that_is_long_enough() -> None:
    pool = BestFit(1000, alignment=1, small=0)
    blocks = [pool.take(size) for size in (100, 10, 50, 10, 70, 10)]
    for index in (0, 2, 4):
        pool.give(blocks[index])
    assert pool.take(60).offset == blocks[4].offset
    assert pool.take(50).offset == blocks[2].offset


def test_best_fit_keeps_small_blocks_at_the_other_end() -> None:
    pool = BestFit(10_000, alignment=1, small=100)
    assert [pool.take(size).offset for size in (500, 100, 101, 50)] == [0, 9900, 500, 9850]
    assert pool.statistics().touched == 500 + 101 + 100 + 50
    assert BestFit(1 << 20).small == 8192


def test_touched_is_what_was_in_a_block_at_least_once() -> None:
    for pool in (BestFit(4096, alignment=1, small=100), Buddy(4096, alignment=1), Slab(4096, 128)):
        first, second = pool.take(128), pool.take(128)
        pool.give(first)
        pool.give(second)
        assert pool.statistics().touched == 256
        pool.take(64)
        assert pool.statistics().touched == (320 if isinstance(pool, BestFit) else 256)
        pool.reset()
        assert pool.statistics().touched >= 256


def test_slab_numbers_its_blocks_and_takes_no_longer_ones() -> None:
    pool = Slab(10_000, 96, alignment=64)
    assert (pool.stride, pool.blocks) == (128, 78)
    first, second = pool.take(96), pool.take(1)
    assert (pool.index(first), pool.index(second)) == (0, 1)
    with pytest.raises(OutOfMemory):
        pool.take(129)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_comes_back_once_and_to_its_own_pool(kind: str) -> None:
    pool, other = KINDS[kind](1024, 1), KINDS[kind](1024, 1)
    block, same_place = pool.take(96), other.take(96)
    assert block == same_place
    with pytest.raises(BlockError):
        pool.give(same_place)
    pool.give(block)
    with pytest.raises(BlockError):
        pool.give(block)
    again = pool.take(96)  # the same range: the old block must not free it
    assert again == block
    with pytest.raises(BlockError):
        pool.give(block)
    pool.reset()
    with pytest.raises(BlockError):
        pool.give(again)
    assert pool.statistics().allocated == 0


def test_no_room_says_what_was_asked_and_what_is_free() -> None:
    pool = BestFit(4096, alignment=512)
    blocks = [pool.take(512) for _ in range(8)]
    for block in blocks[::2]:
        pool.give(block)
    with pytest.raises(StageError) as caught:
        pool.take(1024)
    error = caught.value
    assert isinstance(error, OutOfMemory)
    assert (error.asked, error.free, error.largest, error.capacity) == (1024, 2048, 512, 4096)
    assert "no free range is so long" in error.message


@pytest.mark.parametrize("make", [
    lambda: BestFit(100, alignment=3), lambda: Buddy(0, alignment=1), lambda: Slab(100, 101), lambda: Slab(100, 0),
    lambda: BestFit(100, alignment=1).take(0), lambda: Slab(100, 10).take(-1)])
def test_sizes_that_make_no_sense_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        make()


@pytest.mark.parametrize("kind", KINDS)
def test_threads_may_share_a_pool(kind: str) -> None:
    pool = KINDS[kind](1 << 20, 1)
    owner = bytearray(1 << 20)
    clashes: list[Block] = []

    def work(mark: int) -> None:
        for turn in range(300):
            block = pool.take(1 + turn % 96)
            if any(owner[block.offset : block.offset + block.size]):
                clashes.append(block)
            owner[block.offset : block.offset + block.size] = bytes([mark]) * block.size
            if owner[block.offset : block.offset + block.size] != bytes([mark]) * block.size:
                clashes.append(block)
            owner[block.offset : block.offset + block.size] = bytes(block.size)
            pool.give(block)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    now = pool.statistics()
    assert (clashes, now.allocated, now.takes, now.gives) == ([], 0, 1200, 1200)


def test_what_is_equal_gets_a_slab() -> None:
    assert isinstance(allocator(4096, equal=100), Slab)
    assert isinstance(allocator(4096), DEFAULT)
