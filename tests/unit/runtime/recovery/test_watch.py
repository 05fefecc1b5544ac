"""Who is at fault, from beats of a pipeline of three stages."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dayzero.runtime.recovery.messages import Beat
from dayzero.runtime.recovery.watch import Deadlines, Pulse, Watch, hanging, silent

LIMITS = Deadlines(beat=2.0, progress=10.0, joining=50.0)


def _pulses(*states: tuple[float, float, int, bool], phase: str = "serving") -> dict[int, Pulse]:
    """(last moved, last heard, passes, inside) of each rank."""
    made = {}
    for rank, (moved, heard, passes, inside) in enumerate(states):
        pulse = made[rank] = Pulse(0.0)
        pulse.beat(Beat(1, passes, inside, phase), moved)
        pulse.beat(Beat(1, passes, inside, phase), heard)
    return made


def test_who_does_not_beat_is_silent() -> None:
    assert silent(_pulses((9.0, 9.9, 5, False), (7.0, 7.5, 5, True)), 10.0, LIMITS) == [1]


def test_nobody_hangs_while_one_moves() -> None:
    assert hanging(_pulses((1.0, 19.9, 4, False), (12.0, 19.9, 3, True)), 20.0, LIMITS) == []


def test_the_one_inside_of_a_pass_holds_the_others_up() -> None:
    # the second stage stopped in its fourth pass; the first has done four and waits for a token, the third waits for it
    assert hanging(_pulses((1.0, 19.9, 4, False), (1.1, 19.9, 3, True), (0.9, 19.9, 3, False)), 20.0, LIMITS) == [1]


def test_between_passes_the_one_with_the_fewest_is_waited_for() -> None:
    assert hanging(_pulses((1.0, 19.9, 4, False), (1.1, 19.9, 4, False), (0.9, 19.9, 3, False)), 20.0, LIMITS) == [2]


def test_joining_may_take_longer() -> None:
    slow = _pulses((1.0, 19.9, 0, False), (1.0, 19.9, 0, False), phase="loading")
    assert hanging(slow, 20.0, LIMITS) == []
    assert hanging(slow, 60.0, LIMITS) == [0, 1]
    some = _pulses((1.0, 19.9, 0, False), (1.0, 19.9, 0, False))
    some[1].beat(Beat(1, 0, False, "loading"), 1.0)
    assert hanging(some, 60.0, LIMITS) == [1]


class Clock:
    """The time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


def test_who_has_nothing_to_do_may_stand_still_but_not_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    watch = Watch(LIMITS)
    watch.begin([0, 1])
    for second in range(12):
        clock.now = 100.0 + second
        for rank in (0, 1):
            watch.beat(rank, Beat(1, 3, rank == 1, "serving"))
        assert _at_fault(watch, []) == {}
    assert _at_fault(watch, [0, 1]) == {1: "hung for 10 s while serving"}
    watch.asked()
    assert _at_fault(watch, [0, 1]) == {}
    found = {}
    for clock.now in (111.9, 112.7, 113.5):
        watch.beat(0, Beat(1, 3, False, "serving"))
        found = _at_fault(watch, [])
    assert found == {1: "gave no sign of life for 2.5 s"}


def test_who_waits_for_its_turn_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    watch = Watch(LIMITS)
    watch.begin([0, 1])
    found = {}
    for second in range(11):
        clock.now = 100.0 + second
        watch.beat(0, Beat(1, second, False, "serving"))
        assert found == {}
        found = _at_fault(watch, [0], running=[1])
    clock.now = 110.5
    assert _at_fault(watch, [0], running=[1]) == {1: "gave no sign of life for 10.5 s"}


def _at_fault(watch: Watch, busy: list[int], running: Sequence[int] = ()) -> dict[int, str]:
    return watch.at_fault({0: 0.0, 1: 0.0}, busy, lambda rank: rank in running)


def test_nobody_is_at_fault_when_nobody_listened(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    watch = Watch(LIMITS)
    watch.begin([0])
    for clock.now in (160.0, 160.9):
        assert watch.at_fault({0: 0.0}, [0], lambda _: False) == {}
