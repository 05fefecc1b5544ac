"""Memory, room and times of many layouts at once: everything that the search ranks by.

Stages of a pipeline that are alike are counted once. Of a device that is only known by its datasheet the times are
those of continuous batching (`batching`, the model that `score` is measured with); of a measured one, or one with a
stated efficiency, those of the roofline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import numpy as np

from dayzero.arrays import Value
from dayzero.placement import split_layers
from dayzero.placement.capacity import sequences_of_stage
from dayzero.placement.draft import drafted
from dayzero.placement.many import Layouts
from dayzero.placement.memory import device_bytes, sequences_per_replica
from dayzero.schema import ModelSpec, OpGraph, Target, Workload

from .requests.arrival import Server
from .requests.load import arriving, columns, of_rates, of_shares
from .times.batching import Batching, moved_seconds
from .times.hops import Hops, hops
from .times.roofline import Cost, Roofline, chosen
from .times.serving import served
from .times.speeds import EXPECTED, Shares, Speeds, speeds
from .times.stage import Rows, Split, rows
from .times.timing import pass_seconds
from .times.work import decode_step, prefill_step

FASTEST, SLOWEST = 0, 2
Times = tuple[Value, Value, Value]
"""To the first token, between tokens, and tokens a second; each of shape [3, layouts]: fastest, expected, slowest."""


@dataclass
class Evaluated:
    """Columns of one length, a row for each layout."""

    layouts: Layouts
    """The layouts."""
    fits: Value
    """Whether every device has room for the workload."""
    need_bytes: Value
    """Bytes on the fullest device."""
    causes: dict[str, Value]
    """The same by cause."""
    max_sequences: Value
    """Sequences of full length that fit at the same time, over all replicas."""
    ttft_s: Value
    """Time to the first token."""
    tpot_s: Value
    """Time for each further token."""
    tokens_per_s: Value
    """Output tokens a second of the whole cluster."""
    ttft_between: Value
    """Low and high end of `ttft_s`; shape [2, layouts]."""
    tpot_between: Value
    """Of `tpot_s`."""
    tokens_between: Value
    """Of `tokens_per_s`."""
    cut: Value
    """Which of the splits of its layers a pipeline has, see `splits`; 0: the one that was asked for."""
    arrivals: dict[str, Value] = field(default_factory=dict)
    """Where requests arrive at a rate: whether the layout keeps up (stable), requests a second that it keeps up with at
    most (capacity), sequences decoded at a time, percentiles of the first token (ttft) and between passes (gap). A
    layout that does not keep up has infinite times and no throughput."""

    def __len__(self) -> int:
        return len(self.layouts)


def evaluate(model: ModelSpec, target: Target, layouts: Layouts, *, graph: OpGraph | None = None,
             split: Callable[[ModelSpec, int], Split] = split_layers) -> Evaluated:
    """The layouts, none of which has more stages than there are layers. The concurrency of the workload may be an array
    with a number for each layout. `graph` tells how many operators a step has on
    a measured device; `split` which layers each stage holds. Raises TargetError where a rate or a link is not stated,
    and ReleaseError when a size that the cache depends on is not known."""
    target.cluster.device.rate(model.dtype)
    known, held = speeds(target, model), rows(model, layouts, split)
    causes = {cause: np.broadcast_to(size, len(held.owner)) for cause, size in
              device_bytes(model, held.layouts, held.layers, _spread(target, held)).items()}
    needs = np.sum(list(causes.values()), axis=0)
    fullest, room = held.largest(needs), _room(model, _spread(target, held), held, causes) * layouts.dp
    (ttft, tpot, rate), server = (
        _by_shares(batching(model, target, known.shares, layouts, held), room) if known.shares else
        _by_rates(rooflined(model, target, known, graph, layouts, held), room))
    fits, arrivals = needs[fullest] <= target.cluster.usable_bytes, dict[str, Value]()
    if server:
        (ttft, tpot, rate), arrivals = _arrived(server, target.workload, fits, layouts, (ttft, tpot, rate))
    return Evaluated(layouts=layouts, fits=fits, need_bytes=needs[fullest],
                     causes={cause: size[fullest] for cause, size in causes.items()},
                     max_sequences=room, ttft_s=ttft[EXPECTED], tpot_s=tpot[EXPECTED], tokens_per_s=rate[EXPECTED],
                     ttft_between=ttft[[FASTEST, SLOWEST]], tpot_between=tpot[[FASTEST, SLOWEST]],
                     tokens_between=rate[[SLOWEST, FASTEST]], arrivals=arrivals,
                     cut=np.zeros(len(layouts), dtype=np.int64))


def stage_seconds(model: ModelSpec, target: Target, layouts: Layouts, held: Rows, parts: Value) -> Value:
    """Seconds of a decode step on each kind of stage, of one of so many micro-batches."""
    sequences = np.maximum(1.0, sequences_per_replica(target.workload, layouts) / parts)
    known, step = speeds(target, model), decode_step(target, sequences)
    if known.shares:
        return batching(model, target, known.shares, layouts, held).stage_seconds(step)
    return rooflined(model, target, known, None, layouts, held).stages(step).total[EXPECTED]


def _by_shares(made: Batching, room: Value) -> tuple[Times, Server | None]:
    """By the shares of the rates that classes of operators reach, and where requests arrive at a rate what they meet.
    """
    return _batched(made, made.shares, room), of_shares(made, room) if made.target.workload.arrival_rate else None


def _by_rates(made: Roofline, room: Value) -> tuple[Times, Server | None]:
    """The same by one share of the rates."""
    arrive = made.target.workload.arrival_rate
    return _rooflined(made), of_rates(made, room, partial(_decoded, made)) if arrive else None


def batching(model: ModelSpec, target: Target, shares: Shares, layouts: Layouts, held: Rows) -> Batching:
    """What layouts with these stages are timed with by the shares that devices reach, and their draft."""
    draft = drafted(model, target)
    return Batching(model, target, shares, layouts, held, hops(target.cluster, layouts, held),
                    Batching(draft, target, shares, *_draft_stage(draft, target, layouts)) if draft else None)


def rooflined(model: ModelSpec, target: Target, known: Speeds, graph: OpGraph | None, layouts: Layouts, held: Rows
              ) -> Roofline:
    """The same by one share of the rates."""
    draft = drafted(model, target)
    made = Roofline(model, target, known, graph, layouts, held, hops(target.cluster, layouts, held))
    if draft:
        made.draft = Roofline(draft, target, known, None, *_draft_stage(draft, target, layouts))
    return made


def _draft_stage(draft: ModelSpec, target: Target, layouts: Layouts) -> tuple[Layouts, Rows, Hops]:
    """The layouts without a pipeline, and the draft as their only stage."""
    alone = replace(layouts, pp=np.ones_like(layouts.pp))
    held = rows(draft, alone, lambda model, pp: ((0, 1),))
    return alone, held, hops(target.cluster, alone, held)


def _spread(target: Target, held: Rows) -> Target:
    """The target with the concurrency of each row, where that is one for each layout."""
    workload = target.workload
    return msgspec.structs.replace(target, workload=msgspec.structs.replace(
        workload, concurrency=held.spread(workload.concurrency)))


def _room(model: ModelSpec, target: Target, held: Rows, causes: dict[str, Value]) -> Value:
    """Sequences of full length that fit on each replica: as many as on its fullest stage."""
    return held.least(sequences_of_stage(model, held.layouts, held.layers, target, causes)).astype(np.int64)


def _batched(made: Batching, shares: Shares, room: Value) -> Times:
    """(time to the first token, between tokens, tokens a second), each fastest, expected and slowest. The interval is
    what measured cases lay in, but for what memory cannot do; no pipeline was among them, so its slow end has one stage
    at work at a time."""
    figures, workload = (shares.generation, shares.engine, shares.common), made.target.workload
    decode, single = made.decodes(room)
    load = made.load(room, decode)
    tpot, ttft = served(load, *figures)
    slow = tpot if single is decode else served(replace(load, decode=single), *figures)[0]
    tpot, slow = tpot / workload.acceptance_length, slow / workload.acceptance_length
    each = pass_seconds(load.together, *figures, prefill=True, narrow=load.narrow) / load.prompts
    # no more requests are taken up than groups can prefill: of so many under way each takes at least so long
    ttft = np.maximum(ttft, load.requests * each / load.groups - (workload.output_tokens - 1) * tpot)
    between = shares.between
    first = np.array([between.ttft[0] * ttft, ttft, between.ttft[1] * ttft])
    least = np.minimum(tpot, moved_seconds(decode, shares.engine, load.narrow) / workload.acceptance_length)
    token = np.array([np.maximum(between.tpot[0] * tpot, least), tpot, between.tpot[1] * np.maximum(tpot, slow)])
    return first, token, workload.concurrency * workload.output_tokens / (
        first + (workload.output_tokens - 1) * token)


def _rooflined(roofline: Roofline) -> Times:
    """The same at one share of the rates, where requests do not wait for each other."""
    first, value, fast, slow = costs(roofline)
    ttft, tpot = first.total, value.total[EXPECTED]
    each = np.array([np.minimum(fast, tpot), tpot, np.maximum(slow, tpot)])
    ttft = np.array([np.minimum(ttft[0], ttft[1]), ttft[1], np.maximum(ttft[2], ttft[1])])
    return ttft, each, roofline.target.workload.concurrency / each


def _arrived(server: Server, workload: Workload, fits: Value, layouts: Layouts, plain: Times
             ) -> tuple[Times, dict[str, Value]]:
    """The three figures and the columns of `arrivals`, with the relative intervals of the times without arrivals. What
    does not fit keeps those, which are what it would be with room for the stated concurrency."""
    got = arriving(server, layouts, workload)
    ttft, tpot = (np.where(fits, np.where(got.stable, mean, np.inf) * own / own[EXPECTED], own) for mean, own in
                  ((got.ttft_s, plain[0]), (got.tpot_s / workload.acceptance_length, plain[1])))
    done = np.where(got.stable, workload.arrival_rate * workload.output_tokens, 0.0)
    return (ttft, tpot, np.where(fits, done, plain[2])), columns(got, layouts)


def serve(model: ModelSpec, target: Target, layouts: Layouts) -> tuple[Server, Value]:
    """(what each group of ranks does, which layouts fit), on a device of which only the datasheet is known."""
    shares, found = speeds(target, model).known, evaluate(model, target, layouts)
    made = batching(model, target, shares, layouts, rows(model, layouts, split_layers))
    return of_shares(made, found.max_sequences), found.fits


def _decoded(roofline: Roofline, sequences: Value) -> Value:
    """Expected seconds of a pass over so many sequences of each replica."""
    serial, busy, enough = _passes(roofline, sequences)
    return chosen(enough, busy, serial).total[EXPECTED] * roofline.target.workload.acceptance_length


def costs(roofline: Roofline) -> tuple[Cost, Cost, Value, Value]:
    """(cost of a prompt, of a token, the token's fastest and slowest seconds). Fastest: micro-batches keep all stages
    busy; slowest: one stage works at a time. The value takes micro-batches where a serving engine will run and there
    is a sequence for each stage; a measured device runs the reference runtime, one stage at a time."""
    target = roofline.target
    first = roofline.one_by_one(roofline.stages(prefill_step(target)), prefill_step(target))
    serial, busy, enough = _passes(roofline, sequences_per_replica(target.workload, roofline.layouts))
    value = chosen(enough, busy, serial)
    return (first, value, np.minimum(busy.total[FASTEST], serial.total[FASTEST]),
            np.maximum(busy.total[SLOWEST], serial.total[SLOWEST]))


def _passes(roofline: Roofline, sequences: Value) -> tuple[Cost, Cost, Value]:
    """(cost of a token with one stage at work at a time, with micro-batches in all of them, where the latter holds)."""
    target, stages = roofline.target, roofline.layouts.pp
    step = decode_step(target, sequences)
    serial = roofline.each_token(roofline.one_by_one(roofline.stages(step), step), step)
    parts = np.minimum(stages, sequences)
    part = decode_step(target, sequences / parts)
    busy = roofline.each_token(roofline.pipeline(part, parts), part, parts) if np.any(stages > 1) else serial
    enough = (sequences >= stages) & (stages > 1) & (not target.cluster.device.measured)
    return serial, busy, enough
