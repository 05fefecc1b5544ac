"""Parameters on one rank, and what a step does with them beside multiplying: what replicas send, the optimiser's pass,
what goes to the host and back. Of one way to train or of many."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dayzero.arrays import Value, choose, largest
from dayzero.placement.split import FIRST, LAST, is_mtp, is_tower
from dayzero.schema import Cluster, ModelSpec

from .kinds import ENDS, Kinds, Stages
from .load import COLUMN, COLUMNS, ITEM, Vector, held
from .setup import Setup, Ways
from .topology import group, ring

OPTIMIZER_BYTES = 30
"""Moved for each parameter of a step with Adam: gradient, master weight and two moments in 32 bits read, the last three
and the weight in 16 bits written."""


class Held(NamedTuple):
    """Parameters on one rank."""

    dense: Value
    """Of all but routed experts."""
    experts: Value
    """Of routed experts."""

    @property
    def total(self) -> Value:
        """All."""
        return self.dense + self.experts


def holdings(model: ModelSpec, setup: Setup | Ways, kinds: Kinds) -> Held:
    """Parameters on one rank of a layer of each kind, and of ENDS. Shape [kinds and ends] or [kinds and ends, ways]."""
    shape = (kinds.count + len(ENDS), *np.shape(setup.rows))
    found = Held(np.zeros(shape), np.zeros(shape))
    for family in model.families:
        word = family.role.split(".")[0]
        if is_tower(family) or is_mtp(family, model) or word == "unused":
            continue
        count, routed = held(family, model, setup, 1.0)
        layers = set(family.layers)
        places = [place for place, index in enumerate(kinds.examples) if index in layers]
        if not layers:
            places = [kinds.count + (word in LAST)]
            places += [kinds.count + 2] if word in FIRST and model.tied_embeddings else []
        for place in places:
            found[int(routed)][place] += count
    return found


def most(holding: Held, stages: Stages) -> Held:
    """What the stage that holds most has."""
    whole = Held(*(np.tensordot(stages.counts, one, 1) for one in holding))
    fullest = whole.total.argmax(axis=0)
    return Held(*(np.take_along_axis(one, np.expand_dims(fullest, 0), 0)[0] for one in whole))


def shards(setup: Setup | Ways) -> tuple[Value, Value]:
    """Ranks that hold the same weights: (all but experts, experts)."""
    layout = setup.layout
    return layout.dp, largest(1, layout.tp * layout.dp // (layout.ep * layout.expert_tp))


def own(keeps: Held, setup: Setup | Ways, least: int) -> Value:
    """Parameters of which one rank keeps something that is shared from ZeRO stage `least` on."""
    parts = shards(setup)
    shared = sum(count / part for count, part in zip(keeps, parts, strict=True))
    return choose(setup.zero >= least, shared, keeps.total)


def replicas(keeps: Held, setup: Setup | Ways, cluster: Cluster) -> Vector:
    """Gradients summed over replicas and weights gathered: a ring sends (n-1)/n of what is reduced or gathered. Shared
    gradients (zero 2) are reduced for each micro-batch; shared weights (zero 3) are gathered twice for each, too."""
    vector = np.zeros((len(COLUMNS), *np.shape(setup.rows)))
    if setup.frozen:
        return vector
    layout, gradient, every = setup.layout, setup.gradient_bytes, setup.micro_batches
    each = (choose(setup.zero >= 2, every, 1) * gradient
            + choose(setup.zero == 3, 2 * ITEM * every, choose(setup.zero == 0, gradient, ITEM)))
    strides = layout.tp, layout.ep * layout.expert_tp
    for count, ranks, stride in zip(keeps, shards(setup), strides, strict=True):
        sent = each * count * (ranks - 1) / ranks
        inside, across = ring(sent, group(ranks, stride, cluster), cluster)
        vector[COLUMN["inside"]] += inside
        vector[COLUMN["network"]] += across
    return vector


def optimizer(keeps: Held, setup: Setup | Ways, cluster: Cluster) -> Vector:
    """The optimiser's pass over the parameters that the rank updates."""
    vector = np.zeros((len(COLUMNS), *np.shape(setup.rows)))
    if not setup.frozen:
        vector[COLUMN["pointwise"]] = own(keeps, setup, 1) * OPTIMIZER_BYTES / cluster.device.memory_bandwidth
    return vector


def to_host(keeps: Held, setup: Setup | Ways, cluster: Cluster) -> tuple[Value, Value]:
    """(states read and written once a step, the longer of weights read twice and gradients written for each
    micro-batch): seconds between device and host of what is kept there."""
    rate = cluster.device.host_bandwidth
    if rate is None:
        return 0.0, 0.0
    states = choose(setup.away >= 1, 2 * setup.optimiser_bytes * own(keeps, setup, 1), 0.0)
    gradients = choose(setup.away >= 2, setup.gradient_bytes * own(keeps, setup, 2), 0.0)
    weights = choose(setup.away >= 3, 2 * ITEM * own(keeps, setup, 3), 0.0)
    return states / rate, setup.micro_batches * largest(gradients, weights) / rate
