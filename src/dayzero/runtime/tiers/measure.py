"""How fast units can be read with nothing else going on: what bounds a pass that has to read. Needs torch."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import torch

from .parts import Found
from .slots import Flat, Reading, flat_bytes

_AT_ONCE = 8
"""Units in flight."""


def bandwidth(found: Found, reading: Reading, device: torch.device, seconds: float, drop: Callable[[], None]) -> float:
    """Bytes of the files a second, by reads of random single experts, of layers where there are none; `drop` is called
    before each round. The counts are as before."""
    units = [unit for each in found.experts for unit in each.units if unit.parts] or [
        layer.unit for layer in found.layers]
    store = Flat(max(map(flat_bytes, units)), min(_AT_ONCE, len(units)), device)
    before, levels, reading.levels = reading.counts.read_bytes, reading.levels, []
    total, spent, order = 0, 0.0, random.Random(0)
    while spent < seconds:
        drop()
        some = order.sample(units, min(_AT_ONCE, len(units)))
        began = time.perf_counter()
        works = [work for at, unit in enumerate(some)
                 for work in reading.start(unit, store.targets(unit, at))]
        for work in works:
            work.result()
        spent += time.perf_counter() - began
        total += sum(reading.size(unit) for unit in some)
    reading.counts.read_bytes, reading.levels = before, levels
    return total / spent
