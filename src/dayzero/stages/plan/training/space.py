"""All ways to train a model with one batch on so many devices: layouts that break no rule, and for each what is cut,
kept, shared, scheduled and moved away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dayzero.placement import layouts
from dayzero.placement.legality import blockers
from dayzero.placement.many import Layouts
from dayzero.schema import Layout, ModelSpec, Rejected, Target

from .setup import OFFLOAD, RECOMPUTE, Ways

MICRO_BATCHES = (1, 2, 4, 8, 16)
"""Sequences of a micro-batch that are tried."""
CHUNKS = (1, 2, 3, 4, 6, 8)
"""Chunks of layers of a stage that are tried."""
CONTEXT = (1, 2, 4, 8, 16, 32, 64)
"""Context-parallel degrees that are tried."""
SHARED = (0, 1, 2, 3)
"""What replicas share that is tried, see `Setup.zero`."""
NOT_TRAINED = ("shard-quant-block",)
"""Rules about how a checkpoint is stored; what is trained is not quantised like that."""
Index = np.ndarray[Any, np.dtype[np.int64]]


def legal(model: ModelSpec, target: Target) -> tuple[list[Layout], list[Rejected]]:
    """(layouts that break no rule, why others do). Raises LayoutError for a layout of the target that does not take all
    devices."""
    world = target.cluster.world_size
    wanted = [layout if layout.world_size == world else layout.check_world(world) for layout in target.layouts]
    wanted = wanted or [layout for layout in layouts(world, model.mixes_experts)
                        if layout.tp <= target.cluster.devices_per_node]
    good: list[Layout] = []
    rejected: list[Rejected] = []
    for layout in wanted:
        reasons = [Rejected(layout=layout, rule=finding.rule, message=f"{finding.subject}: {finding.message}")
                   for finding in blockers(model, _alone(layout), target.engine) if finding.rule not in NOT_TRAINED]
        rejected += reasons
        good += [] if reasons else [layout]
    return good, rejected


def _alone(layout: Layout) -> Layout:
    """Without context parallelism, whose ranks come out of dp when training."""
    return Layout(tp=layout.tp, pp=layout.pp, ep=layout.ep, dp=layout.dp, attention_tp=layout.attention_tp)


def ways(model: ModelSpec, target: Target, found: Sequence[Layout]) -> tuple[Ways, Index]:
    """(every way to train with the layouts, the place of each way's layout). Nothing lies in the host's memory: see
    `moved`."""
    batch, scheme = target.workload.global_batch, target.workload.scheme or model.dtype
    if not found:
        return _none(target, scheme), np.zeros(0, np.int64)
    sizes = np.array(divisible(batch, MICRO_BATCHES))
    axes = (np.arange(len(found)), np.array(CONTEXT), sizes, np.array(CHUNKS), np.array([False, True]),
            np.arange(len(RECOMPUTE)), np.array(SHARED), np.array([True, False]))
    every = Layouts.of(found)
    place, cp, micro, virtual, filled, redo, zero, sequence_parallel = _crossed(axes, every, model, target)
    cut = every.take(place)
    chosen = Layouts(tp=cut.tp, pp=cut.pp, ep=cut.ep, dp=cut.dp, cp=np.where(cut.cp > 1, cut.cp, cp),
                     attention_tp=cut.attention_tp)
    made = Ways(layout=chosen, micro_batch=micro, zero=zero, virtual=virtual, redo=redo, zero_bubble=filled,
                sequence_parallel=sequence_parallel, away=np.zeros(len(place), np.int64),
                sequence=target.workload.input_tokens, global_batch=batch, scheme=scheme)
    return made, place


def divisible(batch: int, sizes: Sequence[int]) -> list[int]:
    """Sizes that divide the batch."""
    return [size for size in sizes if batch % size == 0]


def _crossed(axes: Sequence[np.ndarray], every: Layouts, model: ModelSpec, target: Target) -> list[np.ndarray]:
    """All combinations of the axes that go together, an axis at a time so that what cannot be is left out at once."""
    length, batch, layers = target.workload.input_tokens, target.workload.global_batch, len(model.layers)
    cuts = np.array([cp == 1 or (_cuts(model) and length % (2 * cp) == 0) for cp in axes[1]])
    place, cp = (one.reshape(-1) for one in np.meshgrid(axes[0], axes[1], indexing="ij"))
    keep = np.where(every.cp[place] > 1, cp == 1, (every.dp[place] % cp == 0) & cuts[np.searchsorted(axes[1], cp)])
    columns = [place[keep], cp[keep]]
    for number, axis in enumerate(axes[2:], 2):
        count = len(columns[0])
        columns = [np.repeat(one, len(axis)) for one in columns] + [np.tile(axis, count)]
        at = every.take(columns[0])
        if number == 2:  # the replicas can share the batch
            replicas = at.dp // np.where(at.cp > 1, at.cp, columns[1])
            good = batch % (columns[2] * replicas) == 0
        elif number == 3:  # chunks of a stage: layers enough, and micro-batches in rounds of all stages
            rounds = batch // (columns[2] * (at.dp // np.where(at.cp > 1, at.cp, columns[1])))
            good = (columns[3] == 1) | ((at.pp > 1) & (at.pp * columns[3] <= layers) & (rounds % at.pp == 0))
        elif number == 4:
            good = ~columns[4] | ((at.pp > 1) & (columns[3] == 1))
        elif number == 6:  # a single replica shares nothing, whatever it is called
            good = (at.dp > 1) | (columns[6] == 1)
        elif number == 7:
            good = columns[7] | (at.tp > 1)
        else:
            continue
        columns = [one[good] for one in columns]
    return columns


def _cuts(model: ModelSpec) -> bool:
    """Whether sequences can be cut: a state goes from one token to the next, attention does not mind."""
    return all(model.attentions[layer.attention].kind != "linear" for layer in model.layers)


def _none(target: Target, scheme: str) -> Ways:
    nothing = np.zeros(0, np.int64)
    return Ways(layout=Layouts.of([]), micro_batch=nothing, zero=nothing, virtual=nothing, redo=nothing,
                zero_bubble=nothing > 0, sequence_parallel=nothing > 0, away=nothing,
                sequence=target.workload.input_tokens, global_batch=target.workload.global_batch, scheme=scheme)


def moved(made: Ways) -> Ways:
    """The ways with each part of the states in the host's memory."""
    return Ways.joined(made.changed(away=np.full(len(made), level)) for level in range(1, len(OFFLOAD)))
