"""Times that a client sees of an engine under a constant number of requests: continuous batching, one after another.

    time between tokens = decode step + share x prefills of others in the time of an output / its tokens
    time to the first   = request + own prefill + a running step + prefills waited for + waiting for room in the cache

Workers that only prefill or only decode do not wait for each other. docs/numbers.md has the formulas in full.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .terms import Terms, Value
from .timing import MICRO, Figures, pass_seconds

MILLI = 1e-3


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
    """Sequences that are decoded together by one worker."""

    @classmethod
    def stack(cls, loads: list[Load]) -> Load:
        """Many cases as one, with arrays."""
        passes = ("decode", "alone", "together")
        made: dict[str, Any] = {name: Terms.stack([getattr(one, name) for one in loads]) for name in passes}
        for field in fields(cls):
            if field.name not in passes:
                made[field.name] = np.array([float(getattr(one, field.name)) for one in loads])
        return cls(**made)


def step_seconds(decode: Terms, batch: Value, load: Load, generation: Figures, engine: Figures, common: Figures
                 ) -> Value:
    """Seconds of a decode step of `batch` sequences on each worker, of layouts as those of `load`."""
    seconds = pass_seconds(decode, generation, engine, common, prefill=False, narrow=load.narrow)
    return seconds * (1 + load.wide * (common.wide - 1)) + (engine.step + engine.sequence * batch) * MICRO


def served(load: Load, generation: Figures, engine: Figures, common: Figures) -> tuple[Value, Value]:
    """(seconds between tokens, seconds to the first token), means over requests."""
    step = step_seconds(load.decode, load.batch, load, generation, engine, common)
    own = pass_seconds(load.alone, generation, engine, common, prefill=True, narrow=load.narrow)
    each = pass_seconds(load.together, generation, engine, common, prefill=True, narrow=load.narrow) / load.prompts
    waiting = np.maximum(load.requests / load.groups - 1, 0.0)
    beside = np.minimum(load.held, load.requests) / load.groups
    prefilling = beside * each / (beside * each + load.output * step)
    together = step + beside / load.output * each * engine.share
    short = np.maximum(load.requests / load.held - 1, 0.0)
    queue = np.maximum(beside - 1, 0.0) ** engine.queue_power * (engine.queue + engine.loaded * prefilling) * each
    first = MILLI * engine.request + own + step + queue + short * (load.output * together + own)
    decoding = step * common.apart_decode
    hidden = load.unstated > 0
    waits = np.where(hidden, common.unstated_queue * waiting ** common.unstated_power,
                     common.apart_queue * waiting ** common.apart_power)
    sent = MILLI * (engine.request + common.apart_request) + own + decoding + each * waits
    faster = common.unstated_tpot * load.batch ** -common.unstated_batch * np.where(
        load.wide > 0, common.unstated_wide, 1.0)
    tpot = np.where(load.apart > 0, decoding * np.where(hidden, faster, 1.0), together)
    return tpot, np.where(load.apart > 0, sent, first)
