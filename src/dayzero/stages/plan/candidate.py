"""The chosen layouts in full: figures of `evaluate`, memory of every stage, and where the time goes by cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from dayzero.arrays import Value
from dayzero.placement.cache import allocation_of
from dayzero.placement.capacity import longest_sequence
from dayzero.placement.held import weight_bytes
from dayzero.placement.many import Layouts
from dayzero.placement.memory import device_bytes, sequences_per_replica
from dayzero.schema import Candidate, Estimate, Layout, ModelSpec, OpGraph, Target

from .evaluate import Evaluated, batching, costs, rooflined
from .times.batching import scaled
from .times.measured import operators
from .times.roofline import COMMUNICATION, OVERHEAD
from .times.speeds import EXPECTED, Speeds, speeds
from .times.stage import Rows, Split, rows, stage
from .times.terms import CLASSES, Terms, arithmetic
from .times.timing import class_seconds, pass_seconds
from .times.work import CACHE, POINTWISE, Step, decode_step, prefill_step, weight_work

Detail = tuple[dict[str, float], dict[str, float]]
"""Seconds by cause, and by the resource that bounds them."""
DENSE = "linear"
"""Class of the products with weights of which each is shown by its kind."""
_NAMES = {"linear": DENSE, "expert": "experts", "cache": CACHE, "latent": CACHE, "state": "linear attention",
          "pointwise": POINTWISE}
"""What an engineer calls the classes of operators."""
LEAST = 1e-12
"""Seconds that any pass takes."""
DECODING = "scheduling, prefill of others"
"""What of the time between tokens is no pass of the sequence's own."""
WAITING = "waiting, scheduling"
"""What of the time to the first token is not the prompt's own prefill."""


class Planner:
    """Makes candidates for one model on one target."""

    def __init__(self, model: ModelSpec, target: Target, graph: OpGraph | None) -> None:
        self.model, self.target, self.graph = model, target, graph
        self.speeds: Speeds = speeds(target, model)

    def candidate(self, found: Evaluated, row: int, split: Split) -> Candidate:
        """One of the evaluated layouts, without the explanation, which needs the others."""
        layout, usable = found.layouts[row], self.target.cluster.usable_bytes
        held = rows(self.model, found.layouts.take([row]), lambda model, pp: split)
        kinds = [device_bytes(self.model, layout, layers, self.target) for layers in held.layers.distinct]
        number = max(range(len(kinds)), key=lambda kind: sum(kinds[kind].values()))
        decode, prefill = self._details(found, row, held)
        figures = ((found.ttft_s, found.ttft_between), (found.tpot_s, found.tpot_between),
                   (found.tokens_per_s, found.tokens_between))
        source = self._source(layout)
        ttft, tpot, rate = (_estimate(value[row], between[:, row], unit, source) for (value, between), unit in
                            zip(figures, ("s", "s", "tokens/s"), strict=True))
        return Candidate(
            layout=layout, fits=bool(found.fits[row]), stages=split, bytes_per_device=kinds[number],
            usable_bytes=usable, bytes_per_stage=tuple(kinds[kind] for kind in held.pipelines[layout.pp]),
            max_sequences=int(found.max_sequences[row]),
            ttft_s=ttft, tpot_s=tpot, tokens_per_s=rate, decode_seconds=decode[0], prefill_seconds=prefill[0],
            limits=(bound("decode", decode[1]), bound("prefill", prefill[1])), explanation="",
            weights=self._weights(layout, held.layers.distinct[number]),
            max_context=longest_sequence(self.model, layout, held.layers.distinct, self.target),
        )  # fmt: skip

    def _weights(self, layout: Layout, layers: range) -> dict[str, int]:
        """On the fullest device, the largest part first."""
        engine, device = self.target.engine, self.target.cluster.device
        parts = weight_bytes(self.model, layout, engine, allocation_of(engine), layers, device.arch)
        return {part: size for part, size in sorted(parts.items(), key=lambda one: -one[1]) if size}

    def _source(self, layout: Layout) -> str:
        """What estimates are from; with tables also how much of a decode step's operators."""
        tables = operators(self.target, self.speeds.shares) if self.speeds.shares else None
        if tables is None:
            return self.speeds.source
        step = decode_step(self.target, sequences_per_replica(self.target.workload, layout))
        return f"{self.speeds.source}: {tables.sources(self.model, layout, step)}"

    def _details(self, found: Evaluated, row: int, held: Rows) -> tuple[Detail, Detail]:
        """Of a token and of a prompt."""
        one = found.layouts.take([row])
        if self.speeds.shares:
            made = batching(self.model, self.target, self.speeds.shares, one, held)
            room = found.max_sequences[[row]]
            load, steps = made.load(room), (made.decoding(room)[0], prefill_step(self.target))
            token = scaled(load.decode, 1 / self.target.workload.acceptance_length)
            wide = self.speeds.shares.engine.between * float(
                np.max(1 + load.wide * (self.speeds.shares.common.wide - 1)))
            passes = ((token, found.tpot_s[row], DECODING, wide), (load.alone, found.ttft_s[row], WAITING, 1.0))
            decode, prefill = (self._by_class(part, step, one, load.narrow, float(whole), rest, factor)
                               for (part, whole, rest, factor), step in zip(passes, steps, strict=True))
            return decode, prefill
        first, every, _, _ = costs(rooflined(self.model, self.target, self.speeds, self.graph, one, held))
        decode, prefill = ((_numbers({cause: seconds[EXPECTED] for cause, seconds in cost.causes.items()}),
                            _numbers(cost.bounds)) for cost in (every, first))
        return decode, prefill

    def _by_class(self, made: Terms, step: Step, one: Layouts, narrow: float, whole: float, rest: str, factor: float
                  ) -> Detail:
        """A pass by kind of operators, each times `factor`, and what else there is of `whole` seconds. Where fewer
        sequences run than could, the parts of their pass are more than the whole, and are shown in proportion."""
        seconds, bounds, shares = dict[str, float](), dict[str, float](), self.speeds.known
        prefill = step.phase == "prefill"
        for name, limit, part in self._parts(made, prefill):
            taken = float(np.max(pass_seconds(part, shares.generation, shares.engine, shares.common, prefill=prefill,
                                              narrow=narrow))) * factor
            bounds[limit] = bounds.get(limit, 0.0) + taken
            parts = self._dense(made, one, step) if name == DENSE else {name: 1.0}
            for kind, share in parts.items():
                seconds[kind] = seconds.get(kind, 0.0) + share * taken
        fitting = min(1.0, whole / max(sum(seconds.values()), LEAST))
        seconds, bounds = ({name: fitting * taken for name, taken in parts.items()} for parts in (seconds, bounds))
        seconds[rest] = bounds[rest] = max(0.0, whole - sum(seconds.values()))
        return _numbers(seconds), bounds

    def _dense(self, made: Terms, one: Layouts, step: Step) -> dict[str, float]:
        """The shares of the products with weights that those of each kind take, by what each would take alone."""
        device, shares = self.target.cluster.device, self.speeds.known
        every = stage(self.model, range(len(self.model.layers)))
        alone = dict[str, float]()
        for item in weight_work(self.model, one, self.target, every, step):
            if item.group == "linear":
                taken = class_seconds("linear", arithmetic(item, device, shares.common),
                                      item.bytes / device.memory_bandwidth, shares.generation, rows=made.rows,
                                      prefill=step.phase == "prefill")
                alone[item.kind] = alone.get(item.kind, 0.0) + float(np.max(taken))
        return {kind: taken / sum(alone.values()) for kind, taken in alone.items()}

    def _parts(self, made: Terms, prefill: bool) -> Iterator[tuple[str, str, Terms]]:
        """(cause, what bounds it, the part of the pass): a pass is the sum of its parts."""
        nothing = scaled(made, 0.0)
        for kind in CLASSES:
            rate, moved = getattr(made, f"{kind}_rate"), getattr(made, f"{kind}_bytes")
            yield _NAMES[kind], self._bound(kind, made, prefill), replace(
                nothing, **{f"{kind}_rate": rate, f"{kind}_bytes": moved})
        sent = ("reduces", "reduce_steps", "exchanges", "far", "sent", "latency")
        yield COMMUNICATION, "links", replace(nothing, **{name: getattr(made, name) for name in sent})
        called = ("operators", "expert_layers")
        yield OVERHEAD, OVERHEAD, replace(nothing, **{name: getattr(made, name) for name in called})

    def _bound(self, kind: str, made: Terms, prefill: bool) -> str:
        """What takes longer, arithmetic or memory."""
        rows = {"linear": made.rows, "expert": made.expert_rows}.get(kind, 1.0)
        rate, moved = getattr(made, f"{kind}_rate"), getattr(made, f"{kind}_bytes")
        computing, moving = (class_seconds(kind, *part, self.speeds.known.generation, rows=rows, prefill=prefill)
                             for part in ((rate, 0.0 * moved), (0.0 * rate, moved)))
        return "matrix rate" if np.max(computing) > np.max(moving) else "memory bandwidth"


def _estimate(value: float, between: Value, unit: str, source: str) -> Estimate:
    return Estimate(value=float(value), low=float(between[0]), high=float(between[1]), unit=unit, source=source)


def _numbers(columns: dict[str, Any]) -> dict[str, float]:
    """The figures of a single row that are not nothing, largest first."""
    values = {name: float(np.max(column)) for name, column in columns.items()}
    return dict(sorted(((name, value) for name, value in values.items() if value > 0), key=lambda item: -item[1]))


def bound(phase: str, bounds: dict[str, float]) -> str:
    """`decode: memory bandwidth 81 %, links 19 %`: what takes at least a tenth of the time."""
    total = sum(bounds.values())
    shares = sorted(((seconds / total, resource) for resource, seconds in bounds.items()), reverse=True)
    named = [f"{resource} {ceil(100 * share - 0.5)} %" for share, resource in shares if share >= 0.1]
    return f"{phase}: {', '.join(named)}"
