"""Seconds of the operators of a pass: measured where they were, interpolated between, else by the roofline.

    measured       a point of a table
    interpolated   between measured points of the shape
    extrapolated   the nearest point x roofline here / roofline there, and never below what the device states
    roofline       arithmetic and memory at the shares that the device's generation reaches (`timing`)

Each time has an interval that nine tenths of such times lie within; those of several operators add up end by end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dayzero.arrays import Value
from dayzero.data.efficiency import Common, Generation
from dayzero.data.measured import Library
from dayzero.data.measured.grid import NINETY
from dayzero.data.measured.mapping import mapping
from dayzero.placement.many import Layouts
from dayzero.schema import Device, Layout, ModelSpec, Target

from .calls import CLASSES, Call, calls, spread_out, work
from .speeds import Shares
from .stage import Stage
from .terms import Terms
from .timing import MICRO, class_seconds, pass_seconds
from .traffic import Sending, expert_parallel, tensor_parallel
from .work import Step

SOURCES = ("measured", "interpolated", "extrapolated", "roofline")
"""In the order of trust; numbers in `Timed.source` index it."""
MEASURED, INTERPOLATED, EXTRAPOLATED, ROOFLINE = range(4)
ROUGHLY = 0.35
"""Standard deviation of the log of a time by the roofline at fitted shares, against tables: docs/numbers.md."""
AWAY = 0.5
"""Doublings from which on a time is extrapolated."""
PLAIN = ("attention", "latent_attention")
"""Operators whose tables of prompts have no cache before them."""
FIELDS = {"linear": ("linear_rate", "linear_bytes", "operators"), "cache": ("cache_rate", "cache_bytes"),
          "expert": ("expert_rate", "expert_bytes", "expert_layers"), "latent": ("latent_rate", "latent_bytes"),
          "state": ("state_rate", "state_bytes")}
"""Class of operators -> what a pass counts of it."""
CALLED = ("operators", "expert_layers")
"""Of them what a prefill pass takes for the host, which no table has."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Timed:
    """A call with the seconds of one run; arrays with one number for each layout."""

    call: Call
    """The operator."""
    seconds: Array
    """Best guess."""
    low: Array
    """Lower end."""
    high: Array
    """Upper end."""
    source: Array
    """Index into SOURCES."""
    tables: tuple[str, ...]
    """Tables that were read."""


class Timer:
    """Times calls on one device under one engine. Without a library all of them by the roofline."""

    def __init__(self, library: Library | None, target: Target, engine: str, generation: Generation, common: Common
                 ) -> None:
        self.library, self.target, self.engine = library, target, engine
        self.generation, self.common = generation, common

    @property
    def device(self) -> Device:
        """The device."""
        return self.target.cluster.device

    def times(self, made: Iterable[Call]) -> list[Timed]:
        """Of each call."""
        return [self._time(spread_out(call)) for call in made if np.any(call.times)]

    def _time(self, call: Call) -> Timed:
        rough = self.rough(call, call.axes)
        seconds: Array = rough
        spread: Array = np.full(len(rough), ROUGHLY)
        source, names = np.full(len(rough), ROOFLINE), tuple[str, ...]()
        if self.library is not None:
            answer = self.library.read(call.operator, self.device.name, self.engine, call.keys, call.axes)
            found, names = answer.found, answer.names
            known: Array = np.isfinite(found.seconds)
            there = self._there(call, found.at, known)
            far = known & ((found.away >= AWAY) | found.filled | _beyond(call, there))
            moved = np.where(known, found.seconds, 1.0) * rough / self.rough(call, there)
            seconds = np.where(far, np.maximum(moved, self.stated(call)), np.where(known, moved, rough))
            spread = np.where(known, found.spread, spread)
            source = np.where(far, EXTRAPOLATED, np.where(known, np.where(found.on_point, MEASURED, INTERPOLATED),
                                                          ROOFLINE))
        around = np.exp(NINETY * spread)
        return Timed(call=call, seconds=seconds, low=seconds / around, high=seconds * around, source=source,
                     tables=names)

    def _there(self, call: Call, at: dict[str, Array], known: Array) -> dict[str, Value]:
        """Where the table was read; the call's own lengths where nothing was."""
        axes: dict[str, Value] = {}
        for name, own in call.axes.items():
            read: Value = at.get(name, own)
            axes[name] = np.where(known & np.isfinite(read), read, own)
        if call.operator in PLAIN and "context" not in at:
            axes["context"] = np.where(known, 0.0, axes["context"])
        return axes

    def rough(self, call: Call, axes: dict[str, Value]) -> Array:
        """Seconds of one run by the roofline, at the shares of the class."""
        flops, moved = work(call, axes)
        if call.kind == "collective":
            return self._sending(call, axes, moved)
        memory = moved / self.device.memory_bandwidth
        rows = axes["tokens"] if call.kind == "linear" else _rows(axes) if call.kind == "expert" else 1.0
        seconds: Array = np.ones(_size(call)) * class_seconds(
            call.kind, self._arithmetic(call, flops), memory, self.generation, rows=rows,
            prefill=call.phase == "prefill")
        return seconds + MICRO * mapping().calls[call.phase][call.kind]

    def _sending(self, call: Call, axes: dict[str, Value], moved: Value) -> Array:
        ranks = np.asarray(axes["ranks"], dtype=float)
        links = np.array([self.target.cluster.link(int(max(2, each))).bandwidth if each > 1 else np.inf
                          for each in ranks.reshape(-1)])
        call_time = self.common.exchange_call
        if call.operator == "all_reduce":
            call_time = self.generation.reduce_call + self.generation.reduce_step * np.log2(np.maximum(ranks, 1))
        return np.asarray(call_time * MICRO + moved / (links * self.generation.link))

    def _arithmetic(self, call: Call, flops: Value) -> Value:
        plain = self.device.flops.get("bf16") or max(self.device.flops.values())
        rated = self.device.computes_in(call.scheme)
        gain = {"linear": self.common.linear_gain, "expert": self.common.expert_gain}.get(call.kind, 0.0)
        return flops / (plain * (self.device.flops[rated] / plain) ** gain) if rated else 0.0 * flops

    def stated(self, call: Call) -> Array:
        """Seconds of one run at the stated rates: what no kernel is faster than."""
        flops, moved = work(call, call.axes)
        if call.kind == "collective":
            return np.zeros(_size(call))
        rated = self.device.computes_in(call.scheme)
        rate = self.device.flops[rated] if rated else np.inf
        seconds: Array = np.maximum(flops / rate, moved / self.device.memory_bandwidth) * np.ones(_size(call))
        return seconds


def _beyond(call: Call, there: dict[str, Value]) -> Array:
    """Whether tokens lie in the cache that the table does not have."""
    size = np.zeros(_size(call), dtype=bool)
    return size | (call.axes["context"] != there["context"]) if call.operator in PLAIN and (
        call.phase == "prefill") else size


def _size(call: Call) -> int:
    return len(next(iter(call.axes.values())))


def _rows(axes: dict[str, Value]) -> Value:
    """Tokens of an expert that has any."""
    share = axes["top_k"] / axes["experts"]
    visited = axes["experts"] * (1 - (1 - share) ** np.maximum(axes["tokens"], 1e-9))
    return np.maximum(1.0, axes["tokens"] * axes["top_k"] / visited)


def told(timed: Iterable[Timed]) -> dict[str, Array]:
    """Share of the seconds by source: `measured`, `interpolated` ..., one number for each layout."""
    every = [(one, np.asarray(one.seconds * one.call.times)) for one in timed]
    whole = np.sum([seconds.sum(axis=0) if seconds.ndim > 1 else seconds for _, seconds in every], axis=0)
    parts = {}
    for i, name in enumerate(SOURCES):
        own = [np.where(one.source == i, seconds, 0.0) for one, seconds in every]
        parts[name] = np.sum([each.sum(axis=0) if each.ndim > 1 else each for each in own], axis=0) / whole
    return parts


@dataclass(frozen=True)
class Operators:
    """Puts the times of tables in the place of those by fitted shares, class by class, where tables have them."""

    timer: Timer
    """Of the device under the engine."""
    shares: Shares
    """What the pass is timed with."""
    classes: tuple[str, ...]
    """Classes that are replaced."""

    def corrected(self, made: Terms, model: ModelSpec, layout: Layout | Layouts, held: Stage, step: Step,
                  narrow: float) -> Terms:
        """The terms of a pass, changed so that the classes take as long as tables say."""
        timed = self.timer.times(call for call in calls(model, layout, self.timer.target, held, step)
                                 if call.kind in self.classes)
        prefill = step.phase == "prefill"
        for kind, names in FIELDS.items():
            own = [one for one in timed if one.call.kind == kind]
            if own and _whole(model, kind, own):
                names = tuple(name for name in names if not (prefill and name in CALLED))
                counted = self._seconds(_only(made, names), prefill, narrow)
                factor = _summed(own) / np.where(counted > 0, counted, 1.0)
                made = replace(made, **{name: getattr(made, name) * factor for name in names})
        if "collective" in self.classes:
            counted = self._seconds(self._sent(model, layout, held, step), prefill, narrow)
            own = [one for one in timed if one.call.kind == "collective"]
            inside = [(one.source < EXTRAPOLATED) | (np.asarray(one.call.times) == 0) for one in own]
            known = np.all(np.broadcast_arrays(*inside), axis=0) if own else np.array(False)
            made = replace(made, latency=made.latency + np.where(known, _summed(own) - counted, 0.0))
        return made

    def _sent(self, model: ModelSpec, layout: Layout | Layouts, held: Stage, step: Step) -> Terms:
        """What the collectives that tables have are counted as."""
        made, sending = Terms(), Sending(model, layout, self.timer.target.cluster, counted=True)
        made.send(tensor_parallel(sending, held, step))
        if np.any(layout.ep > layout.tp):
            for sent in expert_parallel(sending, held, step):
                made.send(sent)
        return made

    def _seconds(self, made: Terms, prefill: bool, narrow: float) -> Value:
        """Seconds without what the engine makes of a prefill pass: tables replace what it is a factor on."""
        shares = self.shares
        whole = pass_seconds(made, shares.generation, shares.engine, shares.common, prefill=prefill, narrow=narrow)
        return whole / (shares.engine.prefill_factor if prefill else 1.0)


def _whole(model: ModelSpec, kind: str, timed: list[Timed]) -> bool:
    """Whether nothing of the class is without a time: not every kind of attention has tables."""
    names = {name for name, one in model.attentions.items() if CLASSES.get(one.kind, ("cache",))[0] == kind}
    return names <= {one.call.name for one in timed}


def _summed(timed: list[Timed]) -> Value:
    return sum(one.seconds * one.call.times for one in timed)


def _only(made: Terms, names: tuple[str, ...]) -> Terms:
    """A pass of nothing else; what does not add up stays."""
    return replace(Terms(rows=made.rows, expert_rows=made.expert_rows, whole_experts=made.whole_experts),
                   **{name: getattr(made, name) for name in names})


def operators(target: Target, shares: Shares) -> Operators | None:
    """What replaces shares on a target; None: nothing does."""
    if shares.tables is None:
        return None
    timer = Timer(shares.tables, target, target.engine.name, shares.generation, shares.common)
    return Operators(timer, shares, tuple(mapping().used))
