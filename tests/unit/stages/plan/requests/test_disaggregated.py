"""Workers apart: the pairs that are found against all there are, one by one, and what holds at the limits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.stages.plan.requests.disaggregated import Decoders, Pairs, Prefillers, Requests, pairs, ranked

BATCHES = 2.0 ** np.arange(10)


def rows(seed: int, count: int) -> tuple[Prefillers, Decoders]:
    """Random layouts of 1 to 8 devices."""
    draw = np.random.default_rng(seed)
    devices = 2.0 ** draw.integers(0, 4, (2, count))
    prompt = draw.uniform(0.1, 1.0, count) / devices[0] ** 0.7
    steps = draw.uniform(0.005, 0.03, count) / devices[1] ** 0.5
    answers = steps + draw.uniform(1e-5, 1e-3, count) / devices[1] * BATCHES[:, None]
    room = draw.integers(0, 300, count) * devices[1]
    return (Prefillers(devices=devices[0], prompt=prompt, busy=prompt * draw.uniform(0.3, 1.0, count),
                       senders=devices[0], groups=np.ones(count)),
            Decoders(devices=devices[1], batches=BATCHES, answers=answers, room=room, receivers=devices[1],
                     groups=np.ones(count)))


def asked(devices: int = 16, under_way: float = 64, rate: float = 0.0, cache: float = 1e8) -> Requests:
    return Requests(devices=devices, under_way=under_way, rate=rate, tokens=199, cache_bytes=cache, bandwidth=5e10,
                    latency=1e-5)


def one_by_one(ahead: Prefillers, behind: Decoders, wanted: Requests) -> list[tuple[float, float]]:
    """(requests a second, seconds between tokens) of every pair, by a search over whole batches in steps of 1 / 16."""
    found = []
    for first, second in product(range(len(ahead.devices)), range(len(behind.devices))):
        most = int((wanted.devices - behind.devices[second]) // ahead.devices[first])
        for workers in range(1, most + 1):
            others = int((wanted.devices - workers * ahead.devices[first]) // behind.devices[second])
            ways = min(ahead.senders[first], behind.receivers[second])
            own = ahead.prompt[first] + wanted.latency + wanted.cache_bytes / (wanted.bandwidth * ways)
            batch = np.arange(1, 16 * 512) / 16
            step = np.interp(np.maximum(batch, 1), BATCHES, behind.answers[:, second])
            rate = others * batch / (wanted.tokens * step)
            fine = ((batch <= behind.room[second]) & (rate <= workers / ahead.busy[first])
                    & (others * batch + rate * own <= wanted.under_way))
            if fine.any():
                found.append((float(rate[fine][-1]), float(step[fine][-1])))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_none_is_better_than_what_is_found(seed: int) -> None:
    ahead, behind = rows(seed, 6)
    everything = one_by_one(ahead, behind, asked())
    made = pairs(ahead, behind, asked())
    best = ranked(made, 199)[0]
    assert made.requests_per_s[best] == pytest.approx(max(rate for rate, _ in everything), rel=0.01)
    within = ranked(made, 199, tpot_s=0.012)[0]
    assert made.requests_per_s[within] == pytest.approx(
        max(rate for rate, step in everything if step <= 0.012), rel=0.02)


def test_of_equal_throughput_the_first_token_comes_sooner() -> None:
    """Where prefill bounds all, a request takes as long whether it waits before or after its first token."""
    ahead, behind = rows(4, 6)
    slow = Prefillers(**{name: value[:1] for name, value in (vars(ahead) | {
        "devices": np.full(6, 8.0), "busy": np.ones(6), "prompt": np.ones(6)}).items()})
    made = pairs(slow, behind, asked(16, 64))
    assert len(made.batch) > 2 and made.requests_per_s == pytest.approx(np.ones(len(made.batch)))
    ordered = made.ttft_s[ranked(made, 199)]
    assert all(after >= before * 0.99 for before, after in pairwise(ordered))


def test_the_order_of_the_layouts_does_not_matter() -> None:
    ahead, behind = rows(7, 40)
    first = pairs(ahead, behind, asked(64, 400))
    turn = np.arange(40)[::-1]
    second = pairs(Prefillers(**{name: value[turn] for name, value in vars(ahead).items()}),
                   Decoders(devices=behind.devices[turn], batches=BATCHES, answers=behind.answers[:, turn],
                            room=behind.room[turn], receivers=behind.receivers[turn], groups=behind.groups),
                   asked(64, 400))
    best = [one.requests_per_s[ranked(one, 199)[0]] for one in (first, second)]
    assert best[0] == pytest.approx(best[1], rel=0.01)


def check(made: Pairs, wanted: Requests, ahead: Prefillers, behind: Decoders) -> None:
    """What holds for any pair."""
    assert (made.devices <= wanted.devices).all()
    assert (made.prefill_workers >= 1).all() and (made.decode_workers >= 1).all()
    assert (made.ttft_s >= ahead.prompt[made.prefill] + made.transfer_s - 1e-9).all()
    assert (made.tpot_s >= behind.answers[0, made.decode] * (1 - 1e-9)).all()
    assert (made.requests_per_s <= made.prefill_workers / ahead.busy[made.prefill] * (1 + 1e-9)).all()
    assert (made.batch <= behind.room[made.decode] * (1 + 1e-9)).all()


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), devices=st.integers(2, 40), under_way=st.floats(0.5, 2000))
def test_closed_loop(seed: int, devices: int, under_way: float) -> None:
    ahead, behind = rows(seed, 5)
    wanted = asked(devices, under_way)
    made = pairs(ahead, behind, wanted)
    check(made, wanted, ahead, behind)
    in_all = made.requests_per_s * (made.ttft_s + wanted.tokens * made.tpot_s)  # Little's law
    assert in_all == pytest.approx(np.full(len(in_all), under_way), rel=1e-3)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), rate=st.floats(0.01, 5))
def test_open_arrivals(seed: int, rate: float) -> None:
    ahead, behind = rows(seed, 5)
    made = pairs(ahead, behind, asked(rate=rate))
    check(made, asked(rate=rate), ahead, behind)
    assert (made.requests_per_s == rate).all()
    more = pairs(ahead, behind, asked(rate=1.5 * rate))
    assert len(more.batch) <= len(made.batch)


def test_few_arrivals_are_one_request_alone() -> None:
    ahead, behind = rows(3, 1)
    made = pairs(ahead, behind, asked(rate=1e-9))
    assert made.tpot_s == pytest.approx(np.full(len(made.tpot_s), behind.answers[0, 0]), rel=1e-6)
    assert made.ttft_s == pytest.approx(ahead.prompt[0] + made.transfer_s, rel=1e-6)


def test_nothing_where_there_is_no_room() -> None:
    ahead, behind = rows(1, 3)
    small = Decoders(**(vars(behind) | {"room": np.zeros(3)}))
    assert len(pairs(ahead, small, asked()).batch) == 0
    assert len(pairs(ahead, behind, asked(devices=1)).batch) == 0


def test_groups_in_a_worker_are_as_many_workers() -> None:
    """A worker of two groups, on two devices, is two workers of one device each."""
    ahead, behind = rows(11, 1)
    one = Decoders(**(vars(behind) | {"devices": np.ones(1)}))
    two = Decoders(**(vars(behind) | {"devices": np.full(1, 2.0), "groups": np.full(1, 2.0)}))
    single, double = (pairs(ahead, some, asked(17)) for some in (one, two))
    shared = {(int(count), int(others)): rate for count, others, rate in
              zip(single.prefill_workers, single.decode_workers, single.requests_per_s, strict=True)}
    for count, others, rate in zip(double.prefill_workers, double.decode_workers, double.requests_per_s, strict=True):
        if (int(count), 2 * int(others)) in shared:
            assert rate == pytest.approx(shared[int(count), 2 * int(others)])
    assert len(double.batch)


def test_a_measured_queue_lengthens_the_first_token_and_keeps_to_little_s_law() -> None:
    ahead, behind = rows(2, 5)
    plain = pairs(ahead, behind, asked())
    queued = pairs(ahead, behind, replace(asked(), queue=0.4, power=0.7))
    assert queued.requests_per_s.max() < plain.requests_per_s.max()
    assert queued.requests_per_s * (queued.ttft_s + 199 * queued.tpot_s) == pytest.approx(
        np.full(len(queued.batch), 64.0), rel=1e-3)


def test_a_cache_that_is_sent_over_takes_its_time() -> None:
    ahead, behind = rows(5, 4)
    slow, fast = (pairs(ahead, behind, asked(cache=size)) for size in (1e11, 0.0))
    ways = np.minimum(ahead.senders[slow.prefill], behind.receivers[slow.decode])
    assert slow.transfer_s == pytest.approx(1e-5 + 1e11 / (5e10 * ways))
    assert fast.requests_per_s.max() > slow.requests_per_s.max()
