"""Open arrivals against a simulation of an engine, pass by pass, and against what holds at the limits."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dayzero.stages.plan.requests.arrival import PERCENTILES, Arrived, Server, arrived, capacity

BATCHES = 2.0 ** np.arange(12)


def server(fixed: float, each: float, prompt: float, passes: float, answers: float, room: float = 1e9) -> Server:
    """One group whose decode pass takes `fixed` and `each` for every sequence."""
    one = np.array([prompt])
    return Server(batches=BATCHES, steps=(fixed + each * BATCHES)[:, None], prompt=one, busy=one, delay=one,
                  passes=np.array([passes]), answers=answers, room=np.array([room]))


def decode_seconds(made: Server, sequences: int) -> float:
    """A straight line through the first two points."""
    first, second = made.steps[:2, 0]
    return float(first + (second - first) * (sequences - 1)) if sequences else 0.0


class Engine:
    """Continuous batching: a pass decodes one token of every running sequence and takes 1 / passes prompts' worth of
    what waits, whole prompts if it can take a whole one."""

    def __init__(self, made: Server, rate: float, requests: int, seed: int) -> None:
        self.made, self.budget = made, 1 / made.passes[0]
        self.arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, requests))
        self.first, self.last = np.zeros(requests), np.zeros(requests)
        self.waiting: deque[list[float]] = deque()
        self.running: deque[tuple[int, int]] = deque()
        self.passed = 0
        self.gaps: list[tuple[float, int]] = []

    def run(self) -> Engine:
        """Until the last request is answered."""
        now, seen, done = 0.0, 0, 0
        while done < len(self.arrivals):
            if not self.waiting and not self.running and self.arrivals[seen] > now:
                now = self.arrivals[seen]
            while seen < len(self.arrivals) and self.arrivals[seen] <= now:
                self.waiting.append([seen, 1.0])
                seen += 1
            taken, ended = self._take()
            took = decode_seconds(self.made, len(self.running)) + taken * float(self.made.busy[0])
            now += took
            self.gaps.append((took, len(self.running)))
            done += self._decoded(now)
            for request in ended:
                self.first[request] = now
                self.running.append((self.passed + int(self.made.answers), request))
        return self

    def _take(self) -> tuple[float, list[int]]:
        left, ended = self.budget, []
        while self.waiting and left > 1e-12:
            if len(self.running) + len(ended) >= self.made.room[0] or (self.budget >= 1 > left + 1e-9):
                break
            part = min(self.waiting[0][1], left)
            self.waiting[0][1] -= part
            left -= part
            if self.waiting[0][1] < 1e-9:
                ended.append(int(self.waiting.popleft()[0]))
        return self.budget - left, ended

    def _decoded(self, now: float) -> int:
        self.passed += 1
        ended = 0
        while self.running and self.running[0][0] <= self.passed:  # all answers are as long: first in, first out
            self.last[self.running.popleft()[1]] = now
            ended += 1
        return ended


CASES = {
    "several prompts in a pass": server(0.01, 0.0002, 0.05, 0.125, 199),
    "one prompt in a pass": server(0.01, 0.0002, 0.05, 1.0, 199),
    "three chunks": server(0.02, 0.0001, 0.4, 3.0, 99),
    "eight chunks": server(0.02, 0.0003, 0.8, 8.0, 299),
    "short prompts": server(0.03, 0.001, 0.01, 0.05, 499),
}


@pytest.mark.parametrize("load", [0.4, 0.7])
def test_waiting_for_room(load: float) -> None:
    """With room for few sequences most of the time to the first token is the wait for it: within 30 %."""
    made = server(0.02, 0.0002, 0.1, 1.0, 199, room=12)
    rate = load * capacity(made)
    runs = [Engine(made, float(rate[0]), 3000, seed).run() for seed in (1, 2, 3)]
    ttft = np.mean([(run.first - run.arrivals)[500:].mean() for run in runs])
    got = arrived(made, rate)
    assert got.ttft_s[0] == pytest.approx(ttft, rel=0.3)
    roomy = arrived(replace(made, room=np.array([1e6])), rate)
    assert (load > 0.5) == (got.ttft_s[0] > 1.3 * roomy.ttft_s[0])


@pytest.mark.parametrize("load", [0.05, 0.4, 0.7])
@pytest.mark.parametrize("case", CASES)
def test_means_of_a_simulation(case: str, load: float) -> None:
    """Means within 12 %, percentiles within 35 %, up to 70 % of what the group keeps up with."""
    made = CASES[case]
    rate = load * capacity(made)
    runs = [Engine(made, float(rate[0]), 2000, seed).run() for seed in (1, 2)]
    settled = slice(300, None)
    ttft = np.concatenate([(run.first - run.arrivals)[settled] for run in runs])
    tpot = np.concatenate([((run.last - run.first) / made.answers)[settled] for run in runs])
    got = arrived(made, rate)
    assert got.stable.all()
    assert got.tpot_s[0] == pytest.approx(tpot.mean(), rel=0.12)
    assert got.ttft_s[0] == pytest.approx(ttft.mean(), rel=0.12)
    assert got.ttft_percentiles[:, 0] == pytest.approx(np.quantile(ttft, PERCENTILES), rel=0.35)
    took, seen = np.array(sorted(gap for run in runs for gap in run.gaps)).T
    median = took[np.searchsorted(seen.cumsum(), seen.sum() / 2)]
    assert got.gap_percentiles[0, 0] == pytest.approx(median, rel=0.2)


def test_capacity_is_where_a_simulation_falls_behind() -> None:
    made = server(0.01, 0.0002, 0.05, 1.0, 199, room=16)
    most = float(capacity(made)[0])
    below, above = (Engine(made, share * most, 1500, 3).run() for share in (0.8, 1.25))
    waits = [run.first - run.arrivals for run in (below, above)]
    assert waits[0][-300:].mean() < 1.0
    assert waits[1][-300:].mean() > 10 * waits[0][-300:].mean()
    assert arrived(made, np.array([0.8 * most])).stable.all()
    late = arrived(made, np.array([1.25 * most]))
    assert not late.stable.any()
    assert np.isnan([late.tpot_s, late.ttft_s, *late.ttft_percentiles, *late.gap_percentiles]).all()


def test_tokens_are_handed_out_by_one_process() -> None:
    made = replace(server(0.001, 0.0, 0.001, 1.0, 100), handing=0.05)
    assert capacity(made) == 20.0
    assert arrived(made, np.array([19.9])).stable.all() and not arrived(made, np.array([20.1])).stable.any()


def test_no_room_is_no_capacity() -> None:
    assert capacity(server(0.01, 0.0, 0.05, 1.0, 99, room=0)) == 0.0
    assert not arrived(server(0.01, 0.0, 0.05, 1.0, 99, room=0), np.array([0.001])).stable.any()


@given(fixed=st.floats(1e-3, 0.1), each=st.floats(0, 1e-2), prompt=st.floats(1e-3, 5.0), passes=st.floats(0.05, 20.0),
       answers=st.integers(1, 2000))
def test_a_single_request_is_the_plain_case(fixed: float, each: float, prompt: float, passes: float, answers: int
                                            ) -> None:
    got = arrived(server(fixed, each, prompt, passes, answers), np.array([0.0]))
    assert got.tpot_s[0] == pytest.approx(fixed + each, rel=1e-9)
    assert (got.ttft_s[0], *got.ttft_percentiles[:, 0]) == (prompt,) * 4
    assert got.gap_percentiles[:, 0] == pytest.approx(fixed + each, rel=1e-9)


@settings(deadline=None, max_examples=15)
@given(fixed=st.floats(1e-3, 0.1), each=st.floats(0, 1e-3), prompt=st.floats(1e-3, 1.0), passes=st.floats(0.1, 8.0),
       answers=st.integers(20, 1000), room=st.floats(1, 1e4))
@example(fixed=0.03125, each=0.0, prompt=1.0, passes=0.125, answers=20, room=35.0)
@example(fixed=0.03125, each=0.0, prompt=1.0, passes=0.125, answers=20, room=100.0)
def test_rises_with_the_rate(fixed: float, each: float, prompt: float, passes: float, answers: int, room: float
                             ) -> None:
    made = server(fixed, each, prompt, passes, answers, room)
    points = [arrived(made, share * capacity(made)) for share in np.linspace(0, 0.95, 12)]
    stable = [bool(point.stable[0]) for point in points]
    assert stable == sorted(stable, reverse=True)  # once it falls behind, it does at any higher rate
    steady = [point for point in points if point.stable[0]]
    for name, dip in (("tpot_s", 0.001), ("ttft_s", 1e-6), ("sequences", 1e-6)):  # passes get shorter as room fills up
        values = [float(getattr(point, name)[0]) for point in steady]
        assert all(after >= before * (1 - dip) for before, after in pairwise(values)), name
    for point in steady:
        for spread in (point.ttft_percentiles[:, 0], point.gap_percentiles[:, 0]):
            assert list(spread) == sorted(spread)


def test_many_layouts_at_once_are_as_each_alone() -> None:
    made = list(CASES.values())
    together = Server(batches=BATCHES, steps=np.concatenate([one.steps for one in made], axis=1),
                      **{name: np.concatenate([getattr(one, name) for one in made])
                         for name in ("prompt", "busy", "delay", "passes", "room")}, answers=200.0)
    rate = 0.5 * capacity(together)
    all_at_once = arrived(together, rate)
    for index, one in enumerate(made):
        alone: Arrived = arrived(Server(**(vars(one) | {"answers": 200.0})), rate[index:index + 1])
        assert alone.ttft_s[0] == pytest.approx(all_at_once.ttft_s[index], rel=1e-12)
        assert alone.tpot_s[0] == pytest.approx(all_at_once.tpot_s[index], rel=1e-12)
