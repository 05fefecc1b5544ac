"""Stages of which each has room for its layers: fewer layers where more micro-batches are under way or the embedding
lies, at the price of a slower stage."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from .dealing import Chunks, Room, split
from .evaluate import Evaluator
from .kinds import ENDS
from .memory import FRAGMENTS, in_flight, kept, states
from .setup import FULL, NONE, Setup
from .states import Held, holdings
from .step import Parts, spent

LEAST = 0.98
"""Share of the memory up to which stages are filled: what is sent depends on the stage, and is not known before."""


def roomy(evaluator: Evaluator, setup: Setup) -> Chunks:
    """The fastest stages that have room, of one chunk each; empty where there are none."""
    model, cluster, kinds = evaluator.model, evaluator.cluster, evaluator.kinds
    parts = Parts(model, setup, cluster, kinds=kinds)
    each = spent(parts.loads, evaluator.reached, setup)
    times = each.forward + each.backward
    holding, keeps = holdings(model, setup, kinds), kept(model, setup, kinds)
    held = np.array([sum(states(setup, Held(*(one[kind] for one in holding)), 1.0).values())
                     for kind in range(kinds.count + len(ENDS))])
    layers = np.array([held[kind] for kind in kinds.of]).cumsum()
    alive = (1 + FRAGMENTS) * np.array([keeps.layers[setup.redo][kind] for kind in kinds.of]).cumsum()
    again = (1 + FRAGMENTS) * keeps.layers[NONE].max() if setup.redo == FULL else 0.0
    sending = 2 * (1 + FRAGMENTS) * 2 * setup.rows * model.hidden_size
    pp = setup.layout.pp
    logits = (1 + FRAGMENTS) * keeps.logits
    free = np.full(pp, LEAST * cluster.usable_bytes - cluster.device.process_bytes - again - sending)
    free[0] -= held[-3]
    free[-1] -= held[-2] + held[-1] + logits
    sums = [[0.0, *(layers + alive * in_flight(setup, stage))] for stage in range(pp)]
    room: Room = lambda stage, start: bisect_right(sums[stage], sums[stage][start] + free[stage]) - 1  # noqa: E731
    return split([float(times[kind]) for kind in kinds.of], pp, float(times[-3]), float(times[-2]), room)
