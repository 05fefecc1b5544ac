"""Times that a client sees of an engine under a constant number of requests: continuous batching, one after another.

    time between tokens = decode step + share x prefills of others in the time of an output / its tokens + mixed steps
    time to the first   = request + own prefill + a running step + prefills waited for + waiting for room in the cache

Workers that only prefill or only decode do not wait for each other. Where requests are let in slowly fewer are decoded
together, and the others wait. docs/numbers.md has the formulas in full.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from .terms import Terms, Value
from .timing import MICRO, Figures, pass_seconds

MILLI = 1e-3
GROWING = ("linear_rate", "expert_rate", "cache_rate", "cache_bytes", "latent_rate", "latent_bytes", "state_rate",
           "state_bytes", "pointwise_rate", "pointwise_bytes", "rows", "sent")
"""Fields of `Terms` that grow with the sequences of a decode step."""
RUN = 10
"""Requests of a run for each that is under way: what such measurements usually take."""
LEAST = 1e-3
"""Share of the sequences that always run."""


@dataclass
class Load:
    """One case; or arrays, with one value for each of many."""

    decode: Terms
    """A decode step."""
    alone: Terms
    """The prefill of one prompt."""
    together: Terms
    """One prefill pass of as many prompts as a step takes."""
    prompts: Value
    """Prompts of `together`."""
    requests: Value
    """Requests that are under way at any time."""
    held: Value
    """Of them those that the cache has room for."""
    groups: Value
    """Groups of ranks that prefill side by side, of all workers."""
    output: Value
    """Tokens of an answer."""
    narrow: Value
    """1: weights have at most 8 bits."""
    wide: Value
    """1: each device has attention of its own, and experts are spread over all."""
    apart: Value
    """1: prefill and decode have workers of their own."""
    unstated: Value
    """1: and how many is not stated."""
    batch: Value
    """Sequences that are decoded together by one group of ranks with attention, and a scheduler, of its own."""
    stages: Value = 1.0
    """Times `alone` as long as the stage of a pipeline that takes longest: prompts follow one another at its pace."""
    schedulers: Value = 1.0
    """Such groups, of all workers that decode."""
    drafted: Value = 0.0
    """1: the model proposes tokens itself, and `output` counts those that are kept one by one all the same."""
    draft: Value = 0.0
    """Tokens that it proposes a step, where that is known: `decode` has their rows, and they are not in `drafted`."""
    workers: Value = 1.0
    """Workers that decode."""
    looks: Value = 1.0
    """Decode steps from one look at new requests to the next."""
    holds: Value = 0.0
    """Decode steps that a prompt is held at most for others to come, with which it is prefilled;"""
    fills: Value = 1.0
    """prompts at which they are held no longer."""

    @classmethod
    def stack(cls, loads: list[Load]) -> Load:
        """Many cases as one, with arrays."""
        passes = ("decode", "alone", "together")
        made: dict[str, Any] = {name: Terms.stack([getattr(one, name) for one in loads]) for name in passes}
        for field in fields(cls):
            if field.name not in passes:
                made[field.name] = np.array([float(getattr(one, field.name)) for one in loads])
        return cls(**made)


def fewer(terms: Terms, share: Value) -> Terms:
    """A decode step with that share of the sequences: what grows with them, which weights that are read do not."""
    grown = {name: getattr(terms, name) * share for name in GROWING}
    return replace(terms, expert_rows=np.maximum(1.0, terms.expert_rows * share), **grown)


def step_seconds(decode: Terms, batch: Value, load: Load, generation: Figures, engine: Figures, common: Figures
                 ) -> Value:
    """Seconds of a decode step of `batch` sequences of each scheduler, of layouts as those of `load`."""
    seconds = pass_seconds(decode, generation, engine, common, prefill=False, narrow=load.narrow)
    seconds = seconds * (1 + load.wide * (common.wide - 1)) + (engine.step + engine.sequence * batch) * MICRO
    stated = load.apart * (1 - load.unstated)
    seconds = seconds * (1 + stated * (engine.apart_decode * (1 + load.wide * (common.apart_wide - 1)) - 1))
    return seconds * (1 + load.drafted * (common.drafted - 1))


def served(load: Load, generation: Figures, engine: Figures, common: Figures) -> tuple[Value, Value]:
    """(seconds between tokens, seconds to the first token), means over requests."""
    figures = generation, engine, common
    own = pass_seconds(load.alone, *figures, prefill=True, narrow=load.narrow)
    each = pass_seconds(load.together, *figures, prefill=True, narrow=load.narrow) / load.prompts
    alone = 1 + load.apart * (1 - load.unstated) * (engine.apart_prefill - 1)
    own, each = own * alone, each * alone
    running = np.minimum(load.held, load.requests)
    prompt = each, _fixed(load, own / load.stages, each)
    taken = _taken_up(load, running, prompt, figures)
    step, tpot = _between(load, running, taken, prompt, figures)
    beside = running * taken / load.groups
    waited = np.maximum(beside - 1, 0.0)
    prefilling = beside * each / (beside * each + load.output * step)
    queue = each * (engine.burst * waited / 2
                    + waited ** engine.queue_power * (engine.queue + engine.loaded * prefilling))
    room = np.maximum(load.requests / (running * taken) - 1, 0.0) * (load.output * tpot + own)
    first = engine.first * (MILLI * engine.request + own + step + queue) + room + _held(
        load, running * taken / load.output * accepted(load.draft, common.acceptance), step, each)
    hidden, waiting = load.unstated > 0, np.maximum(load.requests / load.groups - 1, 0.0)
    waits = np.where(hidden, common.unstated_queue * waiting ** common.unstated_power,
                     common.apart_queue * waiting ** common.apart_power)
    met = np.where(hidden, 0.0, common.apart_first * load.workers / (RUN * load.requests))
    sent = engine.first * (MILLI * (engine.request + common.apart_request + met) + own + step + each * waits
                           ) + room * np.where(hidden, 1.0, common.apart_room)
    faster = np.where(hidden, engine.unstated_tpot * np.where(load.wide > 0, common.unstated_wide, 1.0), 1.0)
    return tpot * faster * engine.between, np.where(load.apart > 0, sent, first)


def accepted(draft: Value, acceptance: Value) -> Value:
    """Tokens that a step yields when each of `draft` guesses is right with that probability after the one before it."""
    return (1 - acceptance ** (draft + 1)) / (1 - acceptance)


def _held(load: Load, coming: Value, step: Value, each: Value) -> Value:
    """Seconds that a prompt is not prefilled though it could be, where `coming` requests come in a decode step: until
    new requests are looked at, and until as many as are waited for have come, or the first has waited long enough. The
    first of them waits for all of that time, the last not at all if it is the one that was waited for, and others for
    half of it on average. A prompt takes as long as all that have come meanwhile."""
    filled = np.maximum(load.fills - 1, 0.0) / coming
    window = np.minimum(load.holds, filled)
    mean = np.where(load.holds < filled, (1 + coming * window / 2) / (1 + coming * window), 0.5)
    steps = (load.looks - 1) / 2 + window * mean
    return steps * step + coming * (load.looks - 1 + window) / load.groups * each


def _fixed(load: Load, own: Value, each: Value) -> Value:
    """What a prefill pass takes however many prompts it has, from passes of one and of many."""
    growing = (load.prompts * each - own) / np.maximum(load.prompts - 1, 1)
    return np.where(load.prompts > 1, np.maximum(own - np.clip(growing, 0.0, each), 0.0), 0.0)


def _between(load: Load, running: Value, taken: Value, prompt: tuple[Value, Value],
             figures: tuple[Figures, Figures, Figures]) -> tuple[Value, Value]:
    """(a decode step, the time between tokens) with that share of the sequences that could run. A step with a prompt
    is longer by a part of what a pass with one takes anyhow."""
    step = step_seconds(fewer(load.decode, taken), load.batch * taken, load, *figures)
    coming = running * taken / load.groups / load.output
    others = coming * prompt[0] * figures[1].share + np.minimum(coming, 1.0) * prompt[1] * figures[1].mixed
    return step, step / accepted(load.draft, figures[2].acceptance) + np.where(load.apart > 0, 0.0, others)


def _taken_up(load: Load, running: Value, prompt: tuple[Value, Value], figures: tuple[Figures, Figures, Figures]
              ) -> Value:
    """The share of the sequences that could run which do. Where requests are let in more slowly than they would be
    answered, by workers that only prefill or by the process that hands tokens out, so many run as are let in while one
    is answered, which takes a + b x share."""
    _, engine, common = figures
    let_in = np.where(load.apart > 0,
                      np.where(load.unstated > 0, common.unstated_capacity, common.apart_capacity)
                      * load.groups / prompt[0],
                      load.schedulers / (engine.stream * MICRO * load.output))
    whole = np.ones_like(prompt[0] * running)
    all_, half = (_between(load, running, share * whole, prompt, figures)[1] for share in (1.0, 0.5))
    slow = running > let_in * load.output * all_
    if not np.any(slow):
        return whole
    let_in = np.where(slow, let_in, 0.0)
    slope = 2 * (all_ - half)
    lacking = np.maximum(running - let_in * load.output * slope, LEAST * running)
    return np.where(slow, np.clip(let_in * load.output * (all_ - slope) / lacking, LEAST, 1.0), 1.0)
