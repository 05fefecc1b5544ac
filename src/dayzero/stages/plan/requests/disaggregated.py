"""Workers that only prefill beside workers that only decode: which layouts, and how many of each.

    requests a second = min(prefill workers x prompts a second of one, decode workers x batch / time of an answer)

Rows are layouts of one worker, of any number of devices. Those that another beats at every load are left out first;
the others are paired, with every number of prefill workers that leaves devices for a decode worker. docs/numbers.md has
the formulas, section Workers apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dayzero.stages.plan.choice.pareto import front

from .arrival import LEAST, Server, arrived, waiting_for_room

Values = np.ndarray[Any, np.dtype[np.float64]]
"""One for each row."""
Rows = np.ndarray[Any, np.dtype[np.int64]]
"""Positions."""
MOST = 32
"""Rows of either kind that are paired."""
COUNTS = 24
"""Numbers of prefill workers that are tried for a pair."""
_HALVINGS = 40


@dataclass(frozen=True)
class Prefillers:
    """Layouts of one prefill worker."""

    devices: Values
    """That it takes."""
    prompt: Values
    """Seconds of a prompt, alone."""
    busy: Values
    """Seconds that each prompt takes of the worker's time."""
    senders: Values
    """Ranks that each send a part of the cache of a prompt."""
    groups: Values
    """Groups of ranks in it that prefill side by side."""


@dataclass(frozen=True)
class Decoders:
    """Layouts of one decode worker."""

    devices: Values
    """That it takes."""
    batches: Values
    """Shape [k], rising from 1: numbers of sequences that `answers` is known for."""
    answers: Values
    """Shape [k, n]: seconds between tokens with so many sequences."""
    room: Values
    """Sequences that fit."""
    receivers: Values
    """Ranks that each receive a part."""
    groups: Values
    """Groups of ranks in it with sequences of their own; `batches` and `room` are those of one."""


@dataclass(frozen=True)
class Requests:
    """What is asked of all workers together."""

    devices: int
    """That there are."""
    under_way: float
    """Requests under way at any time; used when `rate` is 0."""
    rate: float
    """Requests that arrive in a second; 0: see `under_way`."""
    tokens: float
    """Of an answer after its first."""
    cache_bytes: float
    """Of a prompt, one copy."""
    bandwidth: float
    """Bytes a second of one rank, from worker to worker."""
    latency: float
    """Seconds of a small message between them."""
    queue: float = 0.0
    """Of a constant number of requests each waits for queue x (others of its prefill group)^power prompts,"""
    power: float = 1.0
    """as measured: they do not come one at a time."""


@dataclass(frozen=True)
class Pairs:
    """Combinations; columns of one length."""

    prefill: Rows
    """Position of the prefill layout."""
    decode: Rows
    """Position of the decode layout."""
    prefill_workers: Rows
    """Of the first."""
    decode_workers: Rows
    """Of the second."""
    devices: Values
    """That are taken."""
    batch: Values
    """Sequences of a decoding group."""
    ttft_s: Values
    """Mean time to the first token, with the way of the cache."""
    tpot_s: Values
    """Mean time between tokens."""
    requests_per_s: Values
    """Answered in a second."""
    transfer_s: Values
    """Of the cache of a prompt."""
    waits_for_prefill: np.ndarray[Any, np.dtype[np.bool_]]
    """Whether prefill is what bounds the requests."""

    def take(self, rows: Any) -> Pairs:
        """Those at some positions."""
        return Pairs(**{name: value[rows] for name, value in vars(self).items()})


def pairs(prefillers: Prefillers, decoders: Decoders, asked: Requests) -> Pairs:
    """All that can keep up with what is asked, from the best layouts of either kind; none may be."""
    ahead = _best(prefillers.devices, np.stack([prefillers.busy * prefillers.devices, prefillers.prompt]))
    usable = decoders.room >= 1
    speeds = np.where(decoders.batches[:, None] <= np.maximum(decoders.room, 1.0), decoders.answers, np.inf)
    behind = _best(np.where(usable, decoders.devices, np.inf), speeds[::2] * decoders.devices / decoders.groups)
    first, second, share = (grid.ravel() for grid in np.meshgrid(ahead, behind, np.arange(1, COUNTS + 1),
                                                                 indexing="ij"))
    most = np.floor((asked.devices - decoders.devices[second]) / prefillers.devices[first])
    workers = np.where(most <= COUNTS, share, np.ceil(share * most / COUNTS))
    chosen = (workers <= most) & (most >= 1) & usable[second]
    first, second, workers = first[chosen], second[chosen], workers[chosen]
    others = np.floor((asked.devices - workers * prefillers.devices[first]) / decoders.devices[second])
    return _timed(prefillers, decoders, asked, first, second, workers, others)


def _best(devices: Values, costs: Values) -> Rows:
    """Positions of at most MOST rows that no other beats in devices and all costs (shape [k, n]): in turn the best in
    each of them, the second best in each, and so on."""
    rows = np.flatnonzero(np.isfinite(devices))
    kept = rows[front(devices[rows], *(np.where(np.isfinite(cost), cost, 1e300)[rows] for cost in costs))]
    orders = np.array([kept[np.argsort(cost[kept], kind="stable")] for cost in (*costs, devices)])
    best: Rows = np.array(list(dict.fromkeys(orders.T.ravel().tolist()))[:MOST], dtype=np.int64)
    return best


def _timed(prefillers: Prefillers, decoders: Decoders, asked: Requests, first: Rows, second: Rows, ahead: Values,
           behind: Values) -> Pairs:
    """Times of the chosen pairs; those that do not keep up are left out."""
    transfer = asked.latency + asked.cache_bytes / (
        asked.bandwidth * np.minimum(prefillers.senders[first], decoders.receivers[second]))
    own, most = prefillers.prompt[first] + transfer, ahead / prefillers.busy[first]
    zero, serving = np.zeros(len(first)), behind * decoders.groups[second]
    decoder = Server(batches=decoders.batches, steps=decoders.answers[:, second], prompt=zero, busy=zero, delay=zero,
                     passes=zero + LEAST, answers=asked.tokens, room=decoders.room[second])
    if asked.rate:
        got = arrived(decoder, asked.rate / serving)
        keeps, done, batch, tpot = got.stable & (asked.rate < most), zero + asked.rate, got.sequences, got.tpot_s
        held = np.minimum(asked.rate / most, 1 - LEAST)
        wait = waiting_for_room(held, prefillers.busy[first], ahead)
    else:
        others = np.maximum(asked.under_way / (ahead * prefillers.groups[first]) - 1, 0.0)
        own = own + prefillers.busy[first] * prefillers.groups[first] * asked.queue * others**asked.power
        batch = _batch(decoder, serving, own, most, asked)
        tpot = decoder.step(np.maximum(batch, 1.0))
        done = np.minimum(serving * batch / (asked.tokens * tpot), most)
        keeps = done > 0
        wait = np.maximum(asked.under_way / np.maximum(done, LEAST) - asked.tokens * tpot - own, 0.0)
    made = Pairs(prefill=first, decode=second, prefill_workers=ahead.astype(np.int64),
                 decode_workers=behind.astype(np.int64), batch=batch,
                 devices=ahead * prefillers.devices[first] + behind * decoders.devices[second], ttft_s=own + wait,
                 tpot_s=tpot, requests_per_s=done, transfer_s=transfer, waits_for_prefill=done >= most * (1 - 1e-6))
    return made.take(keeps)


def _batch(decoder: Server, groups: Values, own: Values, most: Values, asked: Requests) -> Values:
    """Sequences of a decoding group when so many requests are always under way: the most that fit, that prefill
    delivers, and that are left beside the requests in prefill. All three rise with the batch: halving of the interval.
    """
    low, high = np.zeros(len(groups)), np.minimum(decoder.room, asked.under_way / groups)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        rate = groups * middle / (asked.tokens * decoder.step(np.maximum(middle, 1.0)))
        fine = (rate <= most) & (groups * middle + rate * own <= asked.under_way)
        low, high = np.where(fine, middle, low), np.where(fine, high, middle)
    return low


def ranked(made: Pairs, tokens: float, ttft_s: float = np.inf, tpot_s: float = np.inf) -> Rows:
    """Positions of the pairs, best first: those within both limits, then by requests a second, time of a request of
    so many tokens after its first, and time to the first, each to three digits, then by devices."""
    beyond = (made.ttft_s > ttft_s) | (made.tpot_s > tpot_s)
    digits = [np.array([float(f"{value:.3g}") for value in column])
              for column in (made.requests_per_s, made.ttft_s + tokens * made.tpot_s, made.ttft_s)]
    order: Rows = np.lexsort((made.devices, digits[2], digits[1], -digits[0], beyond))
    return order
