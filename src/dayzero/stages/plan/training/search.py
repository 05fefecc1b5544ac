"""The search for training: all ways of all layouts, and of each layout the one with the fastest step that fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from dayzero.arrays import Value
from dayzero.data.training import Generation, generation
from dayzero.errors import TargetError
from dayzero.progress import SILENT, Progress
from dayzero.schema import Cluster, Layout, Limits, Link, ModelSpec, Plan, Rejected, Target, Trained
from dayzero.stages.plan.choice.families import families
from dayzero.stages.plan.choice.sensitivity import Figures, sensitivity
from dayzero.stages.plan.choice.smallest import Found, smallest

from .evaluate import Evaluated, Evaluator
from .explain import explained, training_notes
from .load import BITS
from .memory import least_bytes
from .room import roomy
from .setup import Ways
from .space import legal, moved, ways
from .topology import over
from .trained import Maker

SCHEMES = ("bf16", "f16", "f32", *BITS)
"""Precisions of matrix products that models are trained in."""
TRIED = 60
"""Faster ways that do not fit as they are, for which other stages are looked for."""
CONTENDERS = 5
"""Layouts that other hardware could put first."""


def plan_training(model: ModelSpec, target: Target, *, top: int = 20, explain: Sequence[Layout] = (),
                  sizes: bool = False, progress: Progress = SILENT) -> Plan:
    """The best `top` layouts to train the model on the target, and those to `explain`. `sizes`: look for the smallest
    cluster, too; that is done anyway where nothing fits. Raises TargetError without a batch, for a batch that no layout
    can share, or for a device that states no rate for the precision; LayoutError for a layout in the target that does
    not take all devices."""
    started = time.perf_counter()
    checked(model, target)
    target, told = budgeted(target)
    good, rejected = legal(model, target)
    progress.update(f"{len(good)} layouts", 0, 1)
    search = Search(model, target, good)
    unshared = search.unshared()
    if good and len(unshared) == len(good):
        raise too_small(target, good)
    rejected += unshared
    order = search.order()
    ranked = [(rank, place) for rank, place in enumerate(order, 1) if rank <= top or good[place] in explain]
    chosen = [place for _, place in ranked]
    found = [search.trained(place) for place in chosen]
    first = found[0] if found else None
    made = explained(found, [rank for rank, _ in ranked], len(order), search.fitting())
    fits = bool(made) and made[0].fits
    plan = Plan(
        candidates=(), training=made, rejected=tuple(rejected), evaluated=search.evaluated, seconds=0.0,
        workload=msgspec.json.decode(msgspec.json.encode(target.workload)),
        notes=(*told, *training_notes(model, target, search.known), *search.unfilled(first)),
        families=families(rejected, [*good, *refused(rejected)]),
        sensitivity=sensitivity(search.joined, [one.layout for one in made[:CONTENDERS]],
                                search.again(chosen[:CONTENDERS])) if fits else (),
        smallest=smallest(target, lambda other: best_of(model, other)) if sizes or not fits else (),
    )  # fmt: skip
    return msgspec.structs.replace(plan, seconds=time.perf_counter() - started)


def checked(model: ModelSpec, target: Target) -> None:
    """Raises TargetError for what training needs and the target lacks."""
    if not target.workload.global_batch:
        raise TargetError("the batch of a training step is not stated", "add global_batch to [workload]")
    scheme = target.workload.scheme or model.dtype
    if scheme not in SCHEMES:
        raise TargetError(f"nothing is trained in {scheme}", f"set scheme in [workload] to one of {', '.join(SCHEMES)}")
    target.cluster.device.rate(scheme)


def budgeted(target: Target) -> tuple[Target, tuple[str, ...]]:
    """(the target with as many devices as its limits allow, in whole nodes where that is one or more, and no other
    limits; what there is to say of it)."""
    cluster, limits, told = target.cluster, target.limits, list[str]()
    if limits.devices and limits.devices < cluster.world_size:
        whole = limits.devices // cluster.devices_per_node
        cluster = msgspec.structs.replace(cluster, nodes=max(1, whole),
                                          devices_per_node=cluster.devices_per_node if whole else limits.devices)
        told.append(f"{cluster.nodes} x {cluster.devices_per_node} devices are planned for: no more than "
                    f"{limits.devices} may be taken")
    if limits.ttft_s or limits.tpot_s:
        told.append("limits of times to tokens are those of serving: training keeps to none")
    return msgspec.structs.replace(target, cluster=cluster, limits=Limits()), tuple(told)


def too_small(target: Target, good: Sequence[Layout]) -> TargetError:
    """That no layout can share the batch."""
    least = min(one.dp // one.cp for one in good)
    return TargetError(f"no layout can share a batch of {target.workload.global_batch} sequences: the legal ones have "
                       f"{least} replicas or more, or a number that does not divide it",
                       f"take a global_batch that is a multiple of {least}, or fewer devices")


def refused(rejected: Sequence[Rejected]) -> list[Layout]:
    """The rejected layouts, each once."""
    return list(dict.fromkeys(one.layout for one in rejected))


def best_of(model: ModelSpec, target: Target) -> Found | None:
    """The fastest layout that fits on a target; None: none does, or the batch cannot be shared."""
    if target.cluster.device.host_bandwidth is None and least_bytes(model, target) > target.cluster.usable_bytes:
        return None
    good, _ = legal(model, target)
    search = Search(model, target, good)
    order = search.order()
    if not len(order) or not search.fits(order[0]):
        return None
    best = search.trained(order[0])
    return Found(best.layout, True, {"step_s": best.step_s.value, "tokens_per_s": best.tokens_per_s.value})


class Search:
    """All ways to train one model on one target, evaluated."""

    def __init__(self, model: ModelSpec, target: Target, found: Sequence[Layout]) -> None:
        self.model, self.target, self.layouts = model, target, found
        self.cluster = networked(target.cluster)
        self.joined = msgspec.structs.replace(target, cluster=self.cluster)
        self.known: Generation = generation(self.cluster.device.arch)
        self.evaluator = Evaluator(model, self.cluster, over(self.known.reached, self.cluster))
        every, place = ways(model, target, found)
        first = self.evaluator.evaluate(every)
        self.evaluated = len(every)
        self.result, self.place = self._with_host(first, place)
        self.best = self._best()
        self.roomy: dict[int, Trained] = {}
        self.maker = Maker(model, target, self.cluster, self.known)
        self._deal_again()

    def _with_host(self, first: Evaluated, place: Value) -> tuple[Evaluated, Value]:
        """Beside the ways those with states in the host's memory, of what does not fit without."""
        tight = np.flatnonzero(first.need > self.cluster.usable_bytes)
        if self.cluster.device.host_bandwidth is None or not len(tight):
            return first, place
        more = self.evaluator.evaluate(moved(first.ways.take(tight)))
        self.evaluated += len(more.ways)
        joined = Evaluated(Ways.joined([first.ways, more.ways]), *(np.concatenate([getattr(first, name), getattr(
            more, name)]) for name in ("seconds", "bubble", "need")))
        return joined, np.concatenate([place, np.tile(place[tight], len(more.ways) // len(tight))])

    def _best(self) -> dict[int, int]:
        """Of each layout (by place) the way that is fastest and fits, or else needs least."""
        fits = self.result.need <= self.cluster.usable_bytes
        key = np.where(fits, self.result.seconds, self.result.need)
        order = np.lexsort((self.result.need, key, ~fits, self.place))
        layouts, first = np.unique(self.place[order], return_index=True)
        return {int(layout): int(order[at]) for layout, at in zip(layouts, first, strict=True)}

    def _deal_again(self) -> None:
        """Stages of which each has room, for ways that would be faster than the best that fits but whose fullest stage
        has none."""
        fastest = min((self.result.seconds[way] for way in self.best.values() if self.fit(way)), default=np.inf)
        piped = (self.result.ways.layout.pp > 1) & (self.result.ways.virtual == 1) & (self.result.ways.away == 0)
        near = piped & (self.result.need > self.cluster.usable_bytes) & (self.result.seconds < fastest)
        places = np.flatnonzero(near)
        for way in places[np.argsort(self.result.seconds[places])][:TRIED]:
            layout = int(self.place[way])
            if layout in self.roomy:
                continue
            setup = self.result.ways[int(way)]
            chunks = roomy(self.evaluator, setup)
            one = self.maker.trained(setup, chunks) if chunks else None
            if one and one.fits and one.step_s.value < self._now(layout):
                self.roomy[layout] = one

    def _now(self, layout: int) -> float:
        way = self.best[layout]
        return float(self.result.seconds[way]) if self.fit(way) else float("inf")

    def fit(self, way: int) -> bool:
        """Whether a way fits."""
        return bool(self.result.need[way] <= self.cluster.usable_bytes)

    def fits(self, layout: int) -> bool:
        """Whether a layout fits in any way."""
        return layout in self.roomy or self.fit(self.best[layout])

    def fitting(self) -> int:
        """Layouts that fit."""
        return sum(self.fits(layout) for layout in self.best)

    def order(self) -> list[int]:
        """Places of the layouts: those that fit by the time of a step, then the others by what they need."""
        def key(layout: int) -> tuple[bool, float]:
            if layout in self.roomy:
                return False, self.roomy[layout].step_s.value
            way = self.best[layout]
            return (not self.fit(way), float(self.result.seconds[way] if self.fit(way) else self.result.need[way]))
        return sorted(self.best, key=key)

    def trained(self, layout: int) -> Trained:
        """The best way of a layout, in full."""
        if layout in self.roomy:
            return self.roomy[layout]
        way = self.best[layout]
        return self.maker.trained(self.result.ways[way], self.evaluator.chunks(self.result.ways, way))

    def unfilled(self, first: Trained | None) -> tuple[str, ...]:
        """What the best layout is without a zero-bubble schedule, where the first one needs it."""
        if not first or not first.fits or first.schedule != "zero-bubble":
            return ()
        plain = (self.result.need <= self.cluster.usable_bytes) & ~self.result.ways.zero_bubble
        if not plain.any():
            return ("without a zero-bubble schedule nothing fits",)
        way = int(np.argmin(np.where(plain, self.result.seconds, np.inf)))
        longer = float(self.result.seconds[way]) / first.step_s.value - 1
        return (f"without a zero-bubble schedule the best is {self.result.ways.layout[way].text}, a step "
                f"{longer:.1%} longer",)

    def unshared(self) -> list[Rejected]:
        """Layouts whose replicas cannot share the batch."""
        return [Rejected(layout=one, rule="batch", message=f"global_batch: {one.dp // one.cp} replicas cannot share "
                         f"{self.target.workload.global_batch} sequences")
                for place, one in enumerate(self.layouts) if place not in self.best]

    def again(self, layouts: Sequence[int]) -> Callable[[Target], Figures]:
        """A function that gives the figures of some layouts, each in its best way, on another target."""
        picked = [self.trained(layout) for layout in layouts]
        tokens = self.target.workload.global_batch * self.target.workload.input_tokens

        def evaluate(other: Target) -> Figures:
            maker = Maker(self.model, other, networked(other.cluster), self.known)
            steps = np.array([maker.step(maker.setup(one), one.stages).seconds for one in picked])
            return {"step_s": steps, "tokens_per_s": tokens / steps}
        return evaluate


def networked(cluster: Cluster) -> Cluster:
    """The cluster, where its network is not stated with that of the generation."""
    if cluster.network or cluster.nodes == 1:
        return cluster
    known = generation(cluster.device.arch)
    network = Link(name="network", devices=0, bandwidth=known.network, latency=1e-5, source=known.source)
    return msgspec.structs.replace(cluster, network=network)
