"""How fast groups of ranks answer with any number of sequences, for layouts with the same stages: what random arrivals
and workers apart are worked out from.

A group has requests of its own: the ranks of a replica, or those of them that share attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from dayzero.arrays import Value
from dayzero.placement.many import Layouts
from dayzero.schema import Target, Workload
from dayzero.stages.plan.times.batching import Batching
from dayzero.stages.plan.times.roofline import Roofline
from dayzero.stages.plan.times.serving import MILLI, step_seconds
from dayzero.stages.plan.times.speeds import EXPECTED
from dayzero.stages.plan.times.timing import MICRO, pass_seconds
from dayzero.stages.plan.times.work import prefill_step

from .arrival import Arrived, Server, arrived

MOST_TOGETHER = 4096
"""Sequences of a group beyond which none are counted."""
NAMES = ("p50", "p90", "p99")
"""Of the percentiles."""


def groups(layouts: Layouts) -> Value:
    """Groups of ranks with requests of their own, of all replicas."""
    return layouts.dp * layouts.tp // layouts.attention_degree


def batches(room: Value) -> Value:
    """Powers of two up to as many sequences as any group has room for."""
    most = int(np.clip(np.max(room, initial=1), 1, MOST_TOGETHER))
    return 2.0 ** np.arange(most.bit_length() + (most & (most - 1) > 0))


def answers(workload: Workload) -> float:
    """Decode passes of a request after its first token, which prefill gives."""
    return (workload.output_tokens - 1) / workload.acceptance_length


def of_shares(made: Batching, room: Value) -> Server:
    """By the shares that devices reach. `room`: sequences of full length that fit, over all replicas."""
    figures = made.shares.generation, made.shares.engine, made.shares.common
    layouts, workload, load = made.layouts, made.target.workload, made.load(room)
    inner = layouts.tp // layouts.attention_degree

    def steps(known: Value) -> Value:
        every, batch = repeated(made, len(known)), np.repeat(known, len(layouts))
        decode = every.answering(*every.parted(batch * np.tile(inner, len(known))))
        seconds = step_seconds(decode, batch, tiled(load, len(known)), *figures)
        return made.shares.engine.between * seconds.reshape(len(known), -1)

    alone = pass_seconds(load.alone, *figures, prefill=True, narrow=load.narrow)
    prompts = max(1, workload.max_batched_tokens // workload.computed_tokens)
    busy = made.passing(prefill_step(made.target, prompts * inner)).slowest / prompts
    engine = made.shares.engine
    found = _server(made.target, layouts, room, steps, engine.first * (MILLI * engine.request + alone), busy,
                    engine.share * engine.between)
    return replace(found, first=engine.first * found.steps[0], handing=engine.stream * MICRO * workload.output_tokens)


def of_rates(made: Roofline, room: Value, decode: Callable[[Value], Value]) -> Server:
    """By one share of the rates. `decode`: seconds of a pass over so many sequences of a replica."""
    step, inner = prefill_step(made.target), made.layouts.tp // made.layouts.attention_degree
    stages = made.stages(step)
    return _server(made.target, made.layouts, room, lambda known: np.array([decode(batch * inner) for batch in known]),
                   made.one_by_one(stages, step).total[EXPECTED], made.held.most(stages.total[EXPECTED]), 1.0)


def _server(target: Target, layouts: Layouts, room: Value, steps: Callable[[Value], Value], prompt: Value, busy: Value,
            waited: float) -> Server:
    workload, own = target.workload, room / groups(layouts)
    known, passes = batches(own), prefill_step(target).passes
    share = passes if passes > 1 else 1 / max(1, workload.max_batched_tokens // workload.computed_tokens)
    return Server(batches=known, steps=steps(known), prompt=prompt, busy=busy, delay=busy * waited,
                  passes=np.full(len(layouts), float(share)), answers=answers(workload), room=own)


def repeated(made: Batching, times: int) -> Batching:
    """The layouts so many times after another, so that they can be asked for as many batches at once."""
    held = made.held
    copies = np.repeat(np.arange(times), len(held.owner))
    rows = replace(tiled(held, times), pipelines=held.pipelines, owner=np.tile(held.owner, times) + copies * len(
        made.layouts), begins=np.add.outer(np.arange(times) * len(held.owner), held.begins).ravel())
    return replace(made, layouts=tiled(made.layouts, times), held=rows, links=tiled(made.links, times),
                   draft=repeated(made.draft, times) if made.draft else None)


def tiled(value: Any, times: int) -> Any:
    """The arrays in a value so many times after another."""
    if isinstance(value, np.ndarray):
        return np.tile(value, times)
    if isinstance(value, tuple):
        return tuple(tiled(one, times) for one in value)
    if isinstance(value, Mapping):
        return {name: tiled(one, times) for name, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: tiled(getattr(value, field.name), times) for field in fields(value)})
    return value


def arriving(server: Server, layouts: Layouts, workload: Workload) -> Arrived:
    """What the requests of the workload see, of layouts whose groups are such."""
    return arrived(server, workload.arrival_rate / groups(layouts))


def columns(got: Arrived, layouts: Layouts) -> dict[str, Value]:
    """What there is to know of all groups together, beside the mean times."""
    every = groups(layouts)
    return {"stable": got.stable, "capacity": got.capacity * every, "sequences": got.sequences * every,
            "ttft": got.ttft_percentiles, "gap": got.gap_percentiles}
