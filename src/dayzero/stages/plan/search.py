"""The search: every layout that multiplies to the world size, judged, evaluated and ranked; the best ones in full, and
what else there is to know about the choice."""

from __future__ import annotations

import time
from functools import partial

import msgspec
import numpy as np

from dayzero.arrays import Value
from dayzero.placement.many import Layouts
from dayzero.progress import SILENT, Progress
from dayzero.schema import Candidate, Family, Layout, ModelSpec, OpGraph, Plan, Size, Target

from .candidate import Planner
from .choice.answers import position, rate_changes, smallest_cluster, trade_offs
from .choice.families import families, lacking
from .choice.limits import bounds, within
from .choice.rank import limited, ranked
from .choice.sharpness import sharpness
from .choice.smallest import sizes
from .evaluate import Evaluated, evaluate, serve
from .space import Judged, every, judge
from .splits import Splits
from .training import plan_training
from .ways.apart import apart
from .ways.relief import Moved, outside, relieved
from .ways.steady import arriving, by_latency, loaded, steady, taken
from .ways.variants import variants
from .words.explain import Counts, summed_up, told
from .words.notes import notes


def plan(model: ModelSpec, target: Target, *, graph: OpGraph | None = None, top: int = 20,
         explain: tuple[Layout, ...] = (), smallest: bool = False, progress: Progress = SILENT) -> Plan:
    """The best `top` layouts for the model on the target, and why the others are rejected. With layouts in the target,
    those alone. `graph` tells how many operators a step has. `explain`: layouts that are kept too, whatever their rank.
    The smallest cluster that works is looked for with `smallest`, and where nothing works on this one. Raises
    LayoutError for a layout of which no whole number of copies makes the world size, TargetError where a rate or a link
    is not stated."""
    if target.workload.kind == "train":
        return summed_up(plan_training(model, target, top=top, explain=explain, sizes=smallest, progress=progress))
    started, search = time.perf_counter(), Search(model, target, graph)
    judged = search.judged(target, (*_asked(target, target.layouts), *_asked(target, explain)))
    rejected = tuple(judged.rejected())
    progress.update("evaluating layouts", 0, len(judged.layouts))
    left = steady(search.evaluated(target, judged.layouts.take(judged.legal)), target.workload)
    found, moved = relieved(model, target, left.found, search.evaluated)
    order = ranked(by_latency(found, target.workload), target.limits)
    keeps = np.asarray(found.fits, dtype=bool) & within(target.limits, limited(found))
    made = Plan(
        candidates=search.candidates(found, order, top, explain, keeps, moved), rejected=(*rejected, *left.rejected),
        evaluated=len(judged.layouts), seconds=0.0, workload=msgspec.to_builtins(target.workload),
        notes=(*search.sharpness(found, order), *notes(model, target, search.planner.speeds, graph)),
        families=(*left.families, *families(rejected, list(judged.layouts)), *search.lacking(found)),
        limits=bounds(target.limits, limited(found), list(found.layouts), np.asarray(found.fits, dtype=bool)),
        front=trade_offs(target, found, search.evaluated),
        sensitivity=rate_changes(target, found, search.evaluated, order),
        smallest=search.smallest() if smallest or not keeps.any() else (),
        apart=apart(model, target, search.planner.speeds, partial(serve, model)) if not target.layouts else (),
        variants=variants(model, target, lambda other: Search(other, target, graph).best()),
    )  # fmt: skip
    progress.update("evaluating layouts", len(judged.layouts), len(judged.layouts))
    return summed_up(msgspec.structs.replace(made, seconds=time.perf_counter() - started))


class Search:
    """The layouts of one model; targets may differ in their size, their load and their rates."""

    def __init__(self, model: ModelSpec, target: Target, graph: OpGraph | None) -> None:
        self.model, self.target, self.graph = model, target, graph
        self.planner, self.splits = Planner(model, target, graph), Splits(model, target)

    def judged(self, target: Target, asked: tuple[Layout, ...] = ()) -> Judged:
        """All layouts of a target, or those that it asks for, and those of `asked`, with the rules that they break."""
        wanted = Layouts.of(target.layouts) if target.layouts else within_budget(self.model, target)
        also = [layout for layout in dict.fromkeys(asked) if position(wanted, layout) is None]
        return judge(self.model, target.engine, Layouts.joined(wanted, Layouts.of(also)))

    def evaluated(self, target: Target, some: Layouts) -> Evaluated:
        """Figures of legal layouts on a target, in their order."""
        if not len(some):  # of none: those of one, of which nothing is taken
            return taken(self.evaluated(target, Layouts.of([Layout()])), np.zeros(0, dtype=np.int64))
        return self.splits.improved(evaluate(self.model, target, some, graph=self.graph), target, self.graph)

    def candidates(self, found: Evaluated, order: Value, top: int, explain: tuple[Layout, ...], keeps: Value,
                   moved: dict[int, Moved]) -> tuple[Candidate, ...]:
        """The first of them in full, and those that are asked for. Of layouts that differ only in how attention or
        experts are shared within tp the first one counts: it stands for the others."""
        places = {int(row): place for place, row in enumerate(order, 1)}
        also = (position(found.layouts, layout) for layout in (*self.target.layouts, *explain))
        rows = dict.fromkeys([*map(int, first_of_each(found.layouts, order)[:top]),
                              *(row for row in also if row is not None)])
        made = [self.candidate(found, row, moved.get(row)) for row in rows]
        counts = Counts(len(found), int(np.sum(found.fits)), int(keeps.sum()))
        return told(made, [places[row] for row in rows], counts, self.target)

    def candidate(self, found: Evaluated, row: int, moved: Moved | None) -> Candidate:
        """One of them, with what arrivals make of it and what it keeps outside of its devices."""
        there = loaded(self.target, found, row)
        planner = self.planner if there is self.target else Planner(self.model, there, self.graph)
        made = arriving(planner.candidate(found, row, self.splits.split(found, row)), found, row,
                        self.target.workload)
        return outside(made, moved) if moved else made

    def sharpness(self, found: Evaluated, order: Value) -> tuple[str, ...]:
        """How sharp the order of the layouts that fit is."""
        rows = order[np.asarray(found.fits, dtype=bool)[order]]
        least = float(found.tokens_between[0, rows[0]]) if len(rows) else 0.0
        return sharpness(found.layouts.take(rows), found.tokens_per_s[rows], least, self.target.cluster,
                         self.planner.speeds.shares is not None)

    def lacking(self, found: Evaluated) -> tuple[Family, ...]:
        """Those that do not fit, by what takes most of their memory."""
        return lacking(list(found.layouts), found.causes, np.asarray(found.fits, dtype=bool),
                       self.target.cluster.usable_bytes)

    def best(self) -> Candidate | None:
        """The first of the layouts; None: none fits."""
        judged = self.judged(self.target)
        found = steady(self.evaluated(self.target, judged.layouts.take(judged.legal)), self.target.workload).found
        order = ranked(by_latency(found, self.target.workload), self.target.limits)
        return self.candidate(found, int(order[0]), None) if len(order) and found.fits[order[0]] else None

    def smallest(self) -> tuple[Size, ...]:
        """The smallest clusters of such devices that work; of this machine, which is as large as it is, none."""
        if self.target.cluster.device.measured:
            return ()

        def legal(target: Target) -> Evaluated:
            judged = self.judged(target)
            return steady(self.evaluated(target, judged.layouts.take(judged.legal)), target.workload).found

        return smallest_cluster(self.target, legal)


def within_budget(model: ModelSpec, target: Target) -> Layouts:
    """All layouts of the cluster that the engine has; with a budget of fewer devices those of all clusters within
    it."""
    world, most, facts = target.cluster.world_size, target.limits.devices, target.engine.facts
    run = not target.cluster.device.measured  # there the reference runtime runs, which has neither
    groups, shared = run and facts.attention_groups is True, run and facts.context_parallel is True
    if most is None or most >= world:
        return every(model, world, groups=groups, shared_caches=shared)
    return Layouts.joined(*(every(model, cluster.world_size, groups=groups, shared_caches=shared)
                            for cluster in sizes(target.cluster, most)))


def first_of_each(some: Layouts, order: Value) -> Value:
    """Of rows in an order those that are the first with their tp, pp and dp and with experts that are cut like all
    else, dealt out within tp, or dealt out to so many groups beyond it; in that order."""
    experts = np.where((some.ep > 1) & (some.ep <= some.tp), 0, some.ep)
    degrees = np.column_stack([some.tp, some.pp, some.dp, experts])[order]
    return order[np.sort(np.unique(degrees, axis=0, return_index=True)[1])]


def _asked(target: Target, some: tuple[Layout, ...]) -> tuple[Layout, ...]:
    """The layouts. Raises LayoutError for one of which no number of copies makes the world size."""
    world = target.cluster.world_size
    return tuple(layout if world % layout.world_size == 0 else layout.check_world(world) for layout in some)
