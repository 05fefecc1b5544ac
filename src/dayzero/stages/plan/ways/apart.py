"""The best combinations of prefill workers and decode workers for a model on a cluster, from what `evaluate` knows of
their layouts. docs/numbers.md, section Workers apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np

from dayzero.arrays import Value
from dayzero.data.efficiency import efficiency
from dayzero.errors import TargetError
from dayzero.placement.many import Layouts
from dayzero.placement.sequence import sequence_bytes
from dayzero.schema import Cluster, Disaggregated, Estimate, Layout, Limits, Link, ModelSpec, Target
from dayzero.stages.plan.choice.smallest import sizes
from dayzero.stages.plan.requests.arrival import Server
from dayzero.stages.plan.requests.disaggregated import Decoders, Pairs, Prefillers, Requests, pairs, ranked
from dayzero.stages.plan.requests.load import answers, groups
from dayzero.stages.plan.space import every, judge
from dayzero.stages.plan.times.serving import MILLI
from dayzero.stages.plan.times.speeds import Speeds

MOST_DEVICES = 64
"""Of a worker."""
KEPT = 5
"""Combinations that are shown."""
Serve = Callable[[Target, Layouts], tuple[Server, Value]]
"""(what each group of ranks does, whether the layout fits) for layouts on a target."""


def apart(model: ModelSpec, target: Target, speeds: Speeds, serve: Serve) -> tuple[Disaggregated, ...]:
    """The best combinations, best first; none on one device, or on devices of which more than the datasheet is known:
    no engine runs there."""
    world = min(target.cluster.world_size, target.limits.devices or target.cluster.world_size)
    link = between(target)
    if world < 2 or speeds.shares is None or link is None:
        return ()
    judged = judge(model, target.engine, workers(model, target, world - 1))
    some = judged.layouts.take(judged.legal)
    if not len(some):
        return ()
    alone = msgspec.structs.replace(target, workload=msgspec.structs.replace(target.workload, concurrency=1))
    server, fits = serve(alone, some)
    kept = np.flatnonzero(fits)
    if not kept.size:
        return ()
    chosen, common = some.take(kept), speeds.shares.common
    inner = groups(chosen).astype(float)
    ranks = (chosen.attention_degree * chosen.pp).astype(float)
    devices = chosen.world_size.astype(float)
    prefillers = Prefillers(
        devices=devices, busy=server.busy[kept] / inner / common.apart_capacity, senders=ranks, groups=inner,
        prompt=server.prompt[kept] + server.steps[0, kept] + MILLI * common.apart_request)
    decoders = Decoders(
        devices=devices, batches=server.batches, room=server.room[kept], receivers=ranks, groups=inner,
        answers=server.steps[:, kept] / target.workload.acceptance_length)
    asked = replace(_requests(model, target, world, link), queue=common.apart_queue, power=common.apart_power)
    made = pairs(prefillers, decoders, asked)
    return tuple(_shown(made, int(row), chosen, target, speeds) for row in _best(made, asked.tokens, target.limits))


def workers(model: ModelSpec, target: Target, most: int) -> Layouts:
    """Layouts of one worker, on an equal part of a node, on whole nodes, or where there is one node on any power of two
    of its devices that a link joins: of one replica, for several that share nothing are several workers, or of some
    over which experts are spread."""
    node, single = target.cluster.devices_per_node, target.cluster.nodes == 1
    worlds = {one.world_size for one in sizes(target.cluster, min(most, MOST_DEVICES)) if one.nodes > 1
              or node % one.world_size == 0 or (single and one.world_size & (one.world_size - 1) == 0
                                                and joining(target.cluster, one.world_size))}
    facts = target.engine.facts
    some = Layouts.joined(*(every(model, world, groups=facts.attention_groups is True,
                                  shared_caches=facts.context_parallel is True) for world in sorted(worlds)))
    return some.take((some.dp == 1) | (some.ep == some.tp * some.dp))


def joining(cluster: Cluster, devices: int) -> Link | None:
    """The link between so many devices; None: none is stated that joins them."""
    try:
        return cluster.link(devices)
    except TargetError:
        return None


def between(target: Target) -> Link | None:
    """The link between workers; None: none is stated that joins all devices."""
    return joining(target.cluster, target.cluster.world_size)


def _requests(model: ModelSpec, target: Target, world: int, link: Link) -> Requests:
    workload, layers = target.workload, range(len(model.layers))
    return Requests(
        devices=world, under_way=float(workload.concurrency), rate=workload.arrival_rate,
        tokens=max(answers(workload) * workload.acceptance_length, 1.0),
        cache_bytes=float(sum(sequence_bytes(model, Layout(), layers, workload.input_tokens))),
        bandwidth=link.bandwidth / link.shared_by, latency=link.latency)


def _best(made: Pairs, tokens: float, limits: Limits) -> list[int]:
    """Rows of the best, each pair of layouts once."""
    order = ranked(made, tokens, limits.ttft_s or np.inf, limits.tpot_s or np.inf)
    seen: dict[tuple[int, int], int] = {}
    for row in order:
        seen.setdefault((int(made.prefill[row]), int(made.decode[row])), int(row))
    return list(seen.values())[:KEPT]


def _shown(made: Pairs, row: int, some: Layouts, target: Target, speeds: Speeds) -> Disaggregated:
    workload, limits = target.workload, target.limits
    ttft, tpot = float(made.ttft_s[row]), float(made.tpot_s[row])
    rate, kept = float(made.requests_per_s[row]) * workload.output_tokens, speeds.known.between.evidence
    around = efficiency().interval(kept.replace("together", "apart"))
    waits = "prefill" if made.waits_for_prefill[row] else "arrivals" if workload.arrival_rate else "decode"

    def estimate(value: float, unit: str, between: tuple[float, float]) -> Estimate:
        return Estimate(value=value, low=value * between[0], high=value * between[1], unit=unit, source=speeds.source)

    return Disaggregated(
        prefill=some[int(made.prefill[row])], decode=some[int(made.decode[row])],
        prefill_workers=int(made.prefill_workers[row]), decode_workers=int(made.decode_workers[row]),
        devices=int(made.devices[row]), batch=float(made.batch[row] * groups(some)[made.decode[row]]),
        ttft_s=estimate(ttft, "s", around.ttft),
        tpot_s=estimate(tpot, "s", around.tpot), transfer_s=float(made.transfer_s[row]), waits_for=waits,
        tokens_per_s=estimate(rate, "tokens/s", (1 / around.tpot[1], 1 / around.tpot[0])),
        within=(limits.ttft_s is None or ttft <= limits.ttft_s) and (limits.tpot_s is None or tpot <= limits.tpot_s))
