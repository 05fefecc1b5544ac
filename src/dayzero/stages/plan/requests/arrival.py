"""Requests that arrive at random times, not one after another: what they wait for, and when there are too many.

A group of ranks serves requests of its own by continuous batching: each pass decodes a token for every running
sequence and takes prompts that wait, in whole or in chunks. All requests are alike, arrivals are Poisson.
docs/numbers.md has the formulas, section Arrivals; every argument may hold one value for each of many layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Values = np.ndarray[Any, np.dtype[np.float64]]
"""One for each layout."""
PERCENTILES = (0.5, 0.9, 0.99)
"""That are reported."""
_ROUNDS = 32
_LOWER = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)
"""Shares of a rate."""
LEAST = 1e-12
"""In place of 0, where something is divided by it."""


@dataclass(frozen=True)
class Server:
    """A group of ranks that has requests of its own."""

    batches: Values
    """Shape [k], rising from 1: numbers of sequences that `steps` is known for; straight lines between them."""
    steps: Values
    """Shape [k, n]: seconds of a decode pass with so many sequences."""
    prompt: Values
    """Seconds from the start to the end of a prompt's prefill, alone."""
    busy: Values
    """Seconds that a prompt takes of the group's time."""
    delay: Values
    """Of these the seconds that running sequences wait for."""
    passes: Values
    """Passes that a prompt takes: chunks of a long one; below 1: so many prompts fit into one pass."""
    answers: float
    """Decode passes that a request takes after its first token."""
    room: Values
    """Sequences that the cache holds."""
    handing: float = 0.0
    """Seconds that a process needs to hand the tokens of a request out, one request after another."""
    first: Values | float = 0.0
    """Seconds of decoding that belong to a first token even where nothing else runs."""

    def step(self, batch: Values) -> Values:
        """Seconds of a decode pass with so many sequences (at least one)."""
        last = len(self.batches) - 1
        if not last:
            only: Values = self.steps[0]
            return only
        after = np.clip(np.searchsorted(self.batches, batch), 1, last)
        column, low, high = np.arange(self.steps.shape[1]), self.batches[after - 1], self.batches[after]
        share = np.clip((batch - low) / (high - low), 0.0, 1.0)
        seconds: Values = self.steps[after - 1, column] * (1 - share) + self.steps[after, column] * share
        return seconds


@dataclass(frozen=True)
class Arrived:
    """What requests see at some rate. Times are nan where the load is not stable: they grow without end."""

    stable: np.ndarray[Any, np.dtype[np.bool_]]
    """Whether the group keeps up."""
    capacity: Values
    """Requests a second that the group keeps up with at most."""
    sequences: Values
    """That are decoded together, on average."""
    tpot_s: Values
    """Mean time between passes that a sequence sees."""
    ttft_s: Values
    """Mean time to the first token."""
    ttft_percentiles: Values
    """Shape [3, n], see PERCENTILES."""
    gap_percentiles: Values
    """Shape [3, n]: time from one pass of a sequence to its next."""


def capacity(server: Server) -> Values:
    """Requests a second that a group keeps up with at most: of all batches that fit, the one that gives most.

    With b sequences a request holds its share 1/b of `answers` passes and delays the others by its prefill:
    rate = b / (answers x step(b) + b x delay); and prompts pass one after another: rate <= 1 / (busy + passes x step);
    and their tokens are handed out.
    """
    room = np.minimum(server.room, server.batches[-1])
    known = np.minimum(server.batches[:, None], room)
    batches = np.concatenate([np.maximum(known, LEAST), np.maximum(room, LEAST)[None]])
    rates = [np.minimum(batch / (server.answers * step + batch * server.delay),
                        1 / (server.busy + server.passes * step))
             for batch in batches for step in (server.step(np.maximum(batch, 1.0)),)]
    most: Values = np.where(server.room >= 1, np.max(rates, axis=0), 0.0)
    if server.handing:
        most = np.minimum(most, 1 / server.handing)
    return most


def arrived(server: Server, rate: Values) -> Arrived:
    """What requests see that arrive at `rate` a second at each group; 0 is a single request."""
    most = capacity(server)
    stable = (rate < most) & (rate * server.delay < 1)
    rate = np.where(stable, rate, 0.0)
    tpot, step, queue = _settled(server, rate)
    sequences = rate * server.answers * tpot
    stable = stable & (rate * (server.prompt + server.answers * tpot) < server.room)
    taken = np.where(stable, rate, 0.0) / np.maximum(most, LEAST)
    short = waiting_for_room(taken, server.room / np.maximum(most, LEAST), server.room)
    least = server.prompt + np.maximum(np.maximum(server.passes, 1.0) * step, server.first)
    mean = least + step / 2 + queue.wait + short
    first = [least + share * step + _tail(queue.wait, queue.met, share) + _tail(short, taken, share)
             for share in PERCENTILES]
    gaps = [server.step(1 + sequences) + queue.added(server, share) for share in PERCENTILES]
    unknown = np.where(stable, 0.0, np.nan)
    return Arrived(stable=stable, capacity=most, sequences=sequences + unknown, tpot_s=tpot + unknown,
                   ttft_s=mean + unknown, ttft_percentiles=np.array(first) + unknown,
                   gap_percentiles=np.array(gaps) + unknown)


@dataclass(frozen=True)
class _Queue:
    """The prompts in front of a group."""

    wait: Values
    """Mean seconds that a prompt waits, beside the pass that is under way."""
    busy: Values
    """Share of the time in which a prompt is being prefilled."""
    met: Values
    """Share of the prompts that find another one in front of them."""
    filled: Values
    """Share of the passes that prefill something."""
    together: Values
    """Prompts of such a pass, on average."""

    def added(self, server: Server, share: float) -> Values:
        """Seconds that prefills add to a pass, at most, in that share of the passes: the prompts of a pass that has any
        are taken as geometrically distributed, at most as many as a pass takes."""
        most = np.maximum(1 / server.passes, 1.0)
        further = np.clip(1 - 1 / self.together, LEAST, 1 - LEAST)
        beyond = np.log((1 - share) / np.maximum(self.filled, LEAST)) / np.log(further)
        prompts = np.where(self.filled > 1 - share, np.clip(np.ceil(beyond), 1.0, most), 0.0)
        seconds: Values = prompts * server.delay / np.maximum(server.passes, 1.0)
        return seconds


def _settled(server: Server, rate: Values) -> tuple[Values, Values, _Queue]:
    """(time between passes of a sequence, mean decode part of any pass, the queue): the fixed point of Little's law,
    sequences = rate x answers x time between passes. It starts from the solution without what `_left_behind` adds."""
    free = 1 - rate * server.delay
    tpot = server.step(1 + _plain(server, rate * server.answers / free)) / free
    for _ in range(_ROUNDS):
        sequences = rate * server.answers * tpot
        running = -np.expm1(-sequences)
        step = server.step(sequences / np.maximum(running, LEAST)) * running
        queue = _queue(server, rate, step)
        own = server.step(1 + sequences)
        behind = _left_behind(server, rate, step) / max(server.answers, 1.0)
        most = own + server.delay / server.passes
        tpot = (tpot + np.minimum((own + server.delay * behind) / free, most)) / 2
    return tpot, step, queue


def _plain(server: Server, factor: Values) -> Values:
    """The least b with b = factor x step(1 + b), the step being straight between the known batches; the last known
    where there is none."""
    above = server.batches[:, None] - 1 >= factor * server.steps
    last = len(server.batches) - 1
    after = np.clip(np.where(above.any(axis=0), above.argmax(axis=0), last), min(1, last), last)
    column, before = np.arange(server.steps.shape[1]), np.maximum(after - 1, 0)
    low, first = server.batches[before], server.steps[before, column]
    width = np.maximum(server.batches[after] - low, LEAST)
    slope = (server.steps[after, column] - first) / width
    found = (1 + factor * (first - slope * low)) / np.maximum(1 - factor * slope, LEAST)
    batch: Values = np.clip(found, 1.0, server.batches[-1]) - 1
    return batch


def _queue(server: Server, rate: Values, step: Values) -> _Queue:
    """The larger of two waits: of prompts that are taken one by one, each with `passes` decode passes (M/D/1:
    Pollaczek-Khinchine), and of prompts that all enter the next pass, which ends for them together (gated service)."""
    service = server.busy + server.passes * step
    busy, prefilling = np.minimum(rate * service, 1 - 1e-9), rate * server.busy
    one_by_one = service * busy / (2 * (1 - busy))
    left = np.maximum(1 - prefilling, LEAST)
    remaining = step / (2 * left) + server.busy**2 * rate / (2 * left * (1 + prefilling))
    gated = (1 + 2 * prefilling) * remaining - step / 2
    each = rate * step / np.maximum(1 - rate * server.delay, LEAST)
    quiet = np.exp(-rate * step)
    still = quiet * np.exp(-prefilling * np.exp(-prefilling) / left)
    filled = np.where(server.passes >= 1, np.minimum(each * server.passes, 1.0), (1 - quiet) / (1 - quiet + still))
    together = np.maximum(each / np.maximum(filled, LEAST), 1.0)
    met = np.maximum(busy, 1 - (1 - filled) * left)
    return _Queue(wait=np.maximum(one_by_one, gated), busy=busy, met=met, filled=filled, together=together)


def _left_behind(server: Server, rate: Values, step: Values) -> Values:
    """Prefills that a sequence waits for beyond rate x its time: at its first token it leaves behind a queue like any
    time has, but its last token comes in a pass, and passes are shorter when nothing is prefilled. Not less than at a
    lower rate: close to saturation, where hardly a pass prefills nothing, the difference is no longer that of means."""
    found: Values = np.max([_left_at(share * rate, _queue(server, share * rate, step)) for share in _LOWER], axis=0)
    return found


def _left_at(rate: Values, queue: _Queue) -> Values:
    waiting: Values = rate * queue.wait * (1 - queue.filled / np.maximum(queue.busy, LEAST))
    more: Values = np.maximum(waiting + queue.busy - queue.filled / 2, 0.0)
    return more


def waiting_for_room(held: Values, seconds: Values, room: Values) -> Values:
    """Mean wait for one of `room` places, of which a share `held` is taken and each for `seconds` when all are: half of
    that of an M/M/c queue, as places are held for equal times (Sakasegawa's approximation)."""
    places = np.maximum(room, 1.0)
    free = np.maximum(1 - held, LEAST)
    wait: Values = seconds / (2 * places) * held ** (np.sqrt(2 * (places + 1)) - 1) / free
    return wait


def _tail(mean: Values, occupied: Values, share: float) -> Values:
    """The wait that a share of the requests stays below: none for those that find no one, exponential for the rest."""
    occupied = np.clip(occupied, LEAST, 1.0)
    wait: Values = np.maximum(mean / occupied * np.log(occupied / (1 - share)), 0.0)
    return wait
