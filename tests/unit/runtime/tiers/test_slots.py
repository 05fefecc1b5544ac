"""Slots over a checkpoint of numbers: what is held is right under any order of needs and reads ahead."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.runtime.tiers.parts import Part, Unit
from dayzero.runtime.tiers.policies import Fading, Recent
from dayzero.runtime.tiers.slots import Flat, Reading, Slots, Stacked

COUNT = 6


class Numbers:
    """Unit n is full of n. Reads wait while `gate` is closed."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.reads: list[int] = []

    def fill(self, name: str, ranges: Any, out: torch.Tensor) -> None:
        assert self.gate.wait(10)
        self.reads.append(ranges[0][0][0])
        out.fill_(ranges[0][0][0])

    def bytes(self, name: str, ranges: Any = None) -> int:
        return 100

    def shape(self, name: str, ranges: Any = None) -> tuple[int, ...]:
        return (1, 3)


UNITS = tuple(Unit((0, number), (Part("w", "w", {0: ((number, number + 1),)}, (1, 3), torch.float32),))
              for number in range(COUNT))  # fmt: skip


def slots(count: int, numbers: Numbers) -> tuple[Slots, Stacked, Reading]:
    reading = Reading(numbers, threads=2)
    store = Stacked(UNITS[0], count, torch.device("cpu"))
    return Slots(count, store, Recent(), reading), store, reading


def test_hits_misses_and_bytes() -> None:
    made, store, reading = slots(2, Numbers())
    for needed in ([0, 1], [1], [2], [1], [0]):
        made.need([UNITS[each] for each in needed])
        for each, slot in zip(needed, made.finish([UNITS[each] for each in needed]), strict=True):
            assert store.tensors["w"][slot].tolist() == [each] * 3
        made.release()
    counts = reading.counts  # 0, 1 read; 1 there; 2 takes the place of 0; 1 there; 0 read again
    assert (counts.hits, counts.misses, counts.late) == (2, 4, 0)
    assert (counts.needed_bytes, counts.fresh_bytes, counts.read_bytes) == (600, 400, 400)
    reading.close()


def test_what_is_held_is_not_evicted_and_too_many_are_refused() -> None:
    made, _, reading = slots(2, Numbers())
    made.need(UNITS[:2])
    made.finish(UNITS[:2])
    made.ahead([UNITS[2]])
    assert not made.there(UNITS[2])
    with pytest.raises(RuntimeError, match="more units"):
        made.need(UNITS[2:3])
    reading.close()


def test_reads_ahead_that_have_not_begun_are_withdrawn() -> None:
    numbers = Numbers()
    made, _, reading = slots(COUNT, numbers)
    numbers.gate.clear()
    made.ahead(UNITS[:4], guessed=True)
    threading.Timer(0.2, numbers.gate.set).start()
    made.need([UNITS[0], UNITS[5]])
    made.finish([UNITS[0], UNITS[5]])
    reading.close()
    assert 3 not in numbers.reads and not made.there(UNITS[3])
    assert reading.counts.late == 1 and reading.counts.useful == 1
    assert reading.counts.read_bytes == 100 * len(numbers.reads)


SCHEDULES = st.lists(st.tuples(st.sets(st.integers(0, COUNT - 1), min_size=1, max_size=2),
                               st.sets(st.integers(0, COUNT - 1), max_size=3)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, COUNT), SCHEDULES)
def test_any_schedule(count: int, schedule: list[tuple[set[int], set[int]]]) -> None:
    reading = Reading(Numbers(), threads=2)
    made = Slots(count, Flat(64, count, torch.device("cpu")), Fading(4), reading)
    for needed, ahead in schedule:
        units = [UNITS[each] for each in sorted(needed)]
        made.need(units)
        made.ahead((UNITS[each] for each in sorted(ahead)), guessed=len(ahead) > 1)
        made.finish(units)
        assert [made.views(unit)[0][1].tolist() for unit in units] == [[[each] * 3] for each in sorted(needed)]
        made.release()
    counts = reading.counts
    assert counts.hits + counts.late + counts.misses == sum(len(needed) for needed, _ in schedule)
    assert counts.useful <= counts.ahead and counts.fresh_bytes <= counts.read_bytes
    reading.close()


class Late(Numbers):
    """Each read takes another time."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def fill(self, name: str, ranges: Any, out: torch.Tensor) -> None:
        time.sleep(self._random.choice((0, 0.0002, 0.001)))
        super().fill(name, ranges, out)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, COUNT), SCHEDULES, st.integers(0, 99))
def test_ranks_whose_reads_take_different_times_have_the_same_in_each_slot(
        count: int, schedule: list[tuple[set[int], set[int]]], seed: int) -> None:
    readings = [Reading(each, threads=2) for each in (Numbers(), Late(seed))]
    ranks = [Slots(count, Flat(64, count, torch.device("cpu")), Fading(4), each, alike=True) for each in readings]
    for needed, ahead in schedule:
        units, places = [UNITS[each] for each in sorted(needed)], []
        for made in ranks:
            made.need(units)
            made.ahead((UNITS[each] for each in sorted(ahead)), guessed=len(ahead) > 1)
            places.append(made.finish(units))
            assert [made.views(unit)[0][1].tolist() for unit in units] == [[[each] * 3] for each in sorted(needed)]
            made.release()
        assert places[0] == places[1]
    for each in readings:
        each.close()
