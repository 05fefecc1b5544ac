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

from dayzero.arrays import Value, each
from dayzero.data.efficiency import Common, Generation
from dayzero.data.measured import Library
from dayzero.data.measured.grid import NINETY, distinct
from dayzero.data.measured.mapping import mapping
from dayzero.placement.many import Layouts
from dayzero.schema import Device, Layout, ModelSpec, Target

from .calls import CLASSES, Call, calls, spread_out, work
from .speeds import Shares
from .stage import Stage, stage
from .terms import Terms
from .timing import MICRO, class_seconds, pass_seconds
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
          "state": ("state_rate", "state_bytes"),
          "collective": ("sent", "reduces", "reduce_steps", "exchanges", "far")}
"""Class of operators -> what a pass counts of it."""
WEIGHT = 0.5
"""Power of the factor by tables of other versions than the engine's own: the fit and they count alike."""
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
        links = each(ranks, lambda count: self.target.cluster.link(count).bandwidth if count > 1 else np.inf)
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
    """Lets tables shape the times by fitted shares, class by class: what a class takes is multiplied with (seconds by
    tables / seconds by the roofline and calls that describe tables in general) ^ weight. So the level stays that of
    measured serving, which no table has, and kernels that are better or worse than most at a shape are seen.
    Collectives, which a pass counts as tables do, are compared with what the pass counts."""

    timer: Timer
    """Of the device under the engine."""
    shares: Shares
    """What the pass is timed with."""
    classes: tuple[str, ...]
    """Classes that take part."""

    def corrected(self, made: Terms, model: ModelSpec, layout: Layout | Layouts, held: Stage, step: Step) -> Terms:
        """The terms of a pass, with factors on those of the classes."""
        asked = [call for call in calls(model, layout, self.timer.target, held, step)
                 if call.kind in self.classes and np.any(call.times)]
        first, which = alike(layout, step)
        timed = [Shaped(call, *self._both(call, first), which) for call in asked]
        for kind, names in FIELDS.items():
            own = [one for one in timed if one.call.kind == kind]
            if own and _whole(model, kind, own):
                factor = self._factor(own, self._counted(made, names) if kind == "collective" else None)
                made = replace(made, **{name: getattr(made, name) * factor for name in names})
        return made

    def sources(self, model: ModelSpec, layout: Layout, step: Step) -> str:
        """Where the times of a pass's operators are from, in words, with their shares of the time."""
        held = stage(model, range(len(model.layers)))
        shares = told(self.timer.times(call for call in calls(model, layout, self.timer.target, held, step)
                                       if call.kind in self.classes))
        return ", ".join(f"{float(np.max(share)):.0%} {name}" for name, share in shares.items() if np.max(share) > 0)

    def _both(self, call: Call, first: Array) -> tuple[Timed, Array]:
        """(the time of one run, the same by the roofline) of layouts that differ."""
        few = spread_out(replace(call, axes={name: value[first] if np.ndim(value) else value
                                             for name, value in call.axes.items()}))
        return self.timer.times([few])[0], self.timer.rough(few, few.axes)

    def _counted(self, made: Terms, names: tuple[str, ...]) -> Value:
        """Seconds that the pass counts for some of its fields."""
        only = replace(Terms(), **{name: getattr(made, name) for name in names})
        return pass_seconds(only, self.shares.generation, self.shares.engine, self.shares.common, prefill=False,
                            narrow=0.0)

    def _factor(self, own: list[Shaped], counted: Value | None) -> Value:
        by_tables = sum(one.all(one.timed.seconds) * one.call.times for one in own)
        by_roofline = sum(one.all(one.rough) * one.call.times for one in own) if counted is None else counted
        known: Value = by_roofline > 0
        if counted is not None:  # no table has what lies beyond its groups of ranks
            inside = [one.all(one.timed.source < EXTRAPOLATED) | (np.asarray(one.call.times) == 0) for one in own]
            known = known & np.all(np.broadcast_arrays(*inside), axis=0)
        mine = self.timer.library is not None and any(self.timer.library.owns(one.call.operator) for one in own)
        ratio = by_tables / np.where(by_roofline > 0, by_roofline, 1.0)
        return np.where(known, ratio, 1.0) ** (1.0 if mine else WEIGHT)


@dataclass(frozen=True)
class Shaped:
    """A call of many layouts, timed once for those that are alike."""

    call: Call
    """Of all."""
    timed: Timed
    """Of those that differ."""
    rough: Array
    """The same by the roofline."""
    which: Array
    """For each of all the one that is like it."""

    def all(self, values: Array) -> Array:
        """A value for each of all; one for all stays one."""
        spread: Array = values[self.which] if len(values) > 1 else values
        return spread


def alike(layout: Layout | Layouts, step: Step) -> tuple[Array, Array]:
    """(positions of layouts whose operators have different lengths, for each layout the one like it)."""
    degrees = [layout.tp, layout.ep, layout.pp, layout.attention_degree]
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(column, dtype=float))
                                    for column in (*degrees, step.sequences, step.context)))
    return distinct(columns)


def _whole(model: ModelSpec, kind: str, timed: list[Shaped]) -> bool:
    """Whether nothing of the class is without a time: not every kind of attention has tables."""
    names = {name for name, one in model.attentions.items() if CLASSES.get(one.kind, ("cache",))[0] == kind}
    return names <= {one.call.name for one in timed}


def operators(target: Target, shares: Shares) -> Operators | None:
    """What shapes the times on a target; None: nothing does. A user's own tables take part whatever their class."""
    if shares.tables is None:
        return None
    own = {"experts": "expert", "linear": "linear", "attention": "cache", "latent_attention": "latent",
           "linear_attention": "state"}
    mine = [own.get(one.about.operator, "collective") for one in shares.tables.own]
    timer = Timer(shares.tables, target, target.engine.name, shares.generation, shares.common)
    return Operators(timer, shares, tuple(dict.fromkeys([*mapping().used, *mine])))
