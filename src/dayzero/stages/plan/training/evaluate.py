"""Time and memory of many ways to train, as arrays: what a step takes, and what the fullest device needs.

What depends on a micro-batch on one rank alone is computed once for each combination of tp, ep, cp, size of the
micro-batch and sequence parallelism; ways with the same stages are timed together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dayzero.arrays import Value
from dayzero.data.training import Reached
from dayzero.schema import Cluster, ModelSpec

from .dealing import Chunks, split
from .kinds import Kinds, Stages
from .memory import Kept, host_bytes, kept, stage_bytes
from .setup import Ways
from .states import Held, holdings, most, optimizer, replicas, to_host
from .step import Beside, Parts, Spent, costs, sent_on, spent, timed

STEPS = 20
"""Parts of the dearest layer that costs are rounded to when layers are dealt out: predictions are not finer."""
BLOCK = 200_000
"""Ways that are timed at a time, so that arrays stay small."""


@dataclass(frozen=True)
class Evaluated:
    """Of each way, in order."""

    ways: Ways
    """The ways."""
    seconds: Value
    """Of a step."""
    bubble: Value
    """Share of it in which a stage waits."""
    need: Value
    """Bytes on the fullest device; without end where the host has no room for what it would keep."""


class _Ranks(NamedTuple):
    """What one rank does for a micro-batch, for each combination that it depends on."""

    which: Value
    """For each way the place of its combination."""
    each: Spent
    """Seconds."""
    holding: Held
    """Parameters."""
    keeps: Kept
    """Activations."""

    def take(self, index: Value) -> _Ranks:
        """For some of the ways."""
        at = self.which[index]
        return _Ranks(at, Spent(*(one[:, at] for one in self.each)), Held(*(one[:, at] for one in self.holding)),
                      Kept(self.keeps.layers[:, :, at], self.keeps.logits[at]))


class Evaluator:
    """Evaluates ways to train one model on one cluster."""

    def __init__(self, model: ModelSpec, cluster: Cluster, reached: Reached) -> None:
        self.model, self.cluster, self.reached = model, cluster, reached
        self.kinds, self._chunks = Kinds(model), dict[tuple[int, ...], Chunks]()
        self._stages = dict[tuple[float, ...], Stages]()

    def evaluate(self, ways: Ways) -> Evaluated:
        """Time and memory of all."""
        count = len(ways)
        seconds, bubble, need = (np.zeros(count) for _ in range(3))
        if count:
            ranks = self._ranks(ways)
            for index, stages in self._groups(ways, ranks):
                for at in np.array_split(index, -(-len(index) // BLOCK)):
                    seconds[at], bubble[at], need[at] = self._group(ways.take(at), ranks.take(at), stages)
        return Evaluated(ways, seconds, bubble, need)

    def chunks(self, ways: Ways, place: int) -> Chunks:
        """Layers of each stage, or of each chunk, of one way."""
        one = ways.take(np.array([place]))
        return self._dealt(_rounded(self._ranks(one), self.kinds)[:, 0], int(one.layout.pp[0]), int(one.virtual[0]))

    def _ranks(self, ways: Ways) -> _Ranks:
        layout = ways.layout
        # on one rank a micro-batch is the same whatever the replicas, but dp says how far ep and cp groups reach
        columns = np.stack([layout.tp, layout.ep, layout.cp, layout.attention_tp, ways.micro_batch,
                            ways.sequence_parallel]).astype(np.int64)
        _, first, which = np.unique(_coded(columns), return_index=True, return_inverse=True)
        some = ways.take(first)
        parts = Parts(self.model, some, self.cluster, kinds=self.kinds)
        return _Ranks(which.reshape(-1), spent(parts.loads, self.reached, some),
                      holdings(self.model, some, self.kinds), kept(self.model, some, self.kinds))

    def _groups(self, ways: Ways, ranks: _Ranks) -> Iterator[tuple[Value, Stages]]:
        """(places of ways, their stages) of ways whose stages are alike."""
        rough = _rounded(ranks, self.kinds)
        _, first, alike = np.unique(_coded(rough), return_index=True, return_inverse=True)
        keys = np.stack([ways.layout.pp, ways.virtual, alike.reshape(-1)[ranks.which]]).astype(np.int64)
        _, at, dealt = np.unique(_coded(keys), return_index=True, return_inverse=True)
        made = [self._staged(rough[:, first[cost]], int(pp), int(virtual)) for pp, virtual, cost in keys[:, at].T]
        distinct = {id(one): one for one in made}
        numbers = {name: number for number, name in enumerate(distinct)}
        group = np.array([numbers[id(one)] for one in made])[dealt.reshape(-1)]
        order = np.argsort(group, kind="stable")
        bounds = np.searchsorted(group[order], np.arange(len(distinct) + 1))
        for number, stages in enumerate(distinct.values()):
            yield order[bounds[number] : bounds[number + 1]], stages

    def _staged(self, rough: Value, pp: int, virtual: int) -> Stages:
        """The stages; the same object for equal ones."""
        stages = self.kinds.stages(self._dealt(rough, pp, virtual), pp)
        return self._stages.setdefault((pp, *stages.counts.reshape(-1), *stages.first), stages)

    def _dealt(self, rough: Value, pp: int, virtual: int) -> Chunks:
        key = (pp, virtual, *(int(one) for one in rough))
        if key not in self._chunks:
            costed = [float(rough[kind]) for kind in self.kinds.of]
            self._chunks[key] = split(costed, pp * virtual, float(rough[-3]), float(rough[-2]))
        return self._chunks[key]

    def _group(self, ways: Ways, ranks: _Ranks, stages: Stages) -> tuple[Value, Value, Value]:
        """(seconds, bubble, need) of ways with the same stages."""
        model, cluster = self.model, self.cluster
        device = costs(self.reached, ways.grouped)
        keeps = most(ranks.holding, stages)
        load = sent_on(model, ways, cluster)
        beside = Beside(device @ replicas(keeps, ways, cluster), device @ optimizer(keeps, ways, cluster),
                        *to_host(keeps, ways, cluster))
        found = timed(ranks.each, device @ (load.forward + load.backward), stages, beside, ways, self.reached)
        need = np.zeros(len(ways))
        for counts, place in zip(stages.counts, stages.first, strict=True):
            causes = stage_bytes(model, ways, cluster, ranks.holding, ranks.keeps, counts, place)
            need = np.maximum(need, sum(causes.values()))
        room = cluster.device.host_memory_bytes
        if room is not None:  # no room there is no room
            need = np.where(host_bytes(ways, keeps) > room, np.inf, need)
        return found.seconds, found.bubble, need


def _rounded(ranks: _Ranks, kinds: Kinds) -> Value:
    """Costs of the kinds of layers and the ends in parts of the dearest layer. Shape [kinds and ends, combinations]."""
    whole = ranks.each.forward + ranks.each.backward
    return np.maximum(np.round(whole / whole[: kinds.count].max(axis=0) * STEPS), 0).astype(np.int64)


def _coded(columns: Value) -> Value:
    """One number for each column of values, equal where all of them are. Shape [values, columns] -> [columns]."""
    code = np.zeros(columns.shape[1], np.int64)
    for row in columns:
        distinct, which = np.unique(row, return_inverse=True)
        code = np.unique(code * len(distinct) + which.reshape(-1), return_inverse=True)[1].reshape(-1)
    return code
