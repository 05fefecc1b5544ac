"""Seconds of a training step: micro-batches through the stages, the bubble, replicas' gradients, the optimiser."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import NamedTuple

import numpy as np

from dayzero.data.training import Reached
from dayzero.placement.split import FIRST, LAST, is_mtp, is_tower
from dayzero.schema import Cluster, ModelSpec

from .load import COLUMN, COLUMNS, ITEM, Load, Loads, Vector, held, nothing
from .setup import Setup
from .topology import group, ring

OPTIMIZER_BYTES = 30
"""Moved for each parameter of a step with Adam: gradient, master weight and two moments in 32 bits read, the last three
and the weight in 16 bits written."""
SMOOTH = 4
"""Exponent of the norm that joins the host's time and the device's, of which the longer one counts."""
CAUSES = {
    "matrix products": ("matrix16", "matrix8", "matrix4", "surface"), "attention": ("attention", "scores", "scan"),
    "experts": ("experts16", "experts8", "experts4", "routed"), "pointwise and casts": ("pointwise", "cast"),
    "tensor and context parallel": ("inside", "network", "messages"),
    "expert parallel": ("dispatch", "dispatch_network"),
}  # fmt: skip
"""Columns of each cause that a step's time is told by."""


class Held(NamedTuple):
    """Parameters on one rank of a stage."""

    dense: float
    """Of all but routed experts."""
    experts: float
    """Of routed experts."""

    @property
    def total(self) -> float:
        """All."""
        return self.dense + self.experts


class Work(NamedTuple):
    """A step at stated rates; `seconds` turns it into time."""

    stages: tuple[Load, ...]
    """One micro-batch in each stage, with what is sent on."""
    replicas: Vector
    """Gradients and weights between replicas of the stage that holds most, a step."""
    optimizer: Vector
    """The optimiser's step of that stage."""
    overlapped: bool
    """Whether weights are gathered for each micro-batch, behind its computing."""


class Step(NamedTuple):
    """Time of a step."""

    seconds: float
    """In all."""
    causes: dict[str, float]
    """Seconds by cause; they add up to the whole."""
    bubble: float
    """Share of the time in which a stage waits for the pipeline to fill and drain."""


def costs(reached: Reached, grouped_kernels: bool = True) -> Vector:
    """Seconds of the device for each second at stated rates, or for each count, over COLUMNS."""
    grouped = reached.grouped if grouped_kernels else reached.grouped * reached.before
    matrix = (reached.matrix, reached.matrix8, reached.matrix4)
    shares = {
        **dict(zip(("matrix16", "matrix8", "matrix4"), matrix, strict=True)),
        **dict(zip(("experts16", "experts8", "experts4"), (share * grouped for share in matrix), strict=True)),
        **{name: getattr(reached, name) for name in ("surface", "attention", "scores", "scan", "pointwise", "cast",
                                                     "routed", "inside", "network", "dispatch", "dispatch_network")},
    }  # fmt: skip
    vector = np.array([1 / shares[name] if name in shares else 0.0 for name in COLUMNS])
    vector[COLUMN["messages"]] = reached.message
    return vector


def split(costed: list[float], stages: int, first: float, last: float) -> tuple[tuple[int, int], ...]:
    """(first layer, one past the last) of each stage such that the slowest stage is as fast as can be, with what the
    first and the last do beside layers; later stages get fewer layers where it is the same."""
    low, high = max(costed), sum(costed) + first + last
    best = _filled(costed, stages, first, last, high)
    for _ in range(40):
        middle = (low + high) / 2
        found = _filled(costed, stages, first, last, middle)
        if found:
            best, high = found, middle
        else:
            low = middle
    return best or ()


def _filled(costed: list[float], stages: int, first: float, last: float, most: float
            ) -> tuple[tuple[int, int], ...] | None:
    """Stages filled one after another up to `most`; each keeps a layer. None: the layers do not fit."""
    bounds, at = [], 0
    for stage in range(stages):
        used = (first if stage == 0 else 0.0) + (last if stage == stages - 1 else 0.0)
        start, leave = at, stages - stage - 1
        while at < len(costed) - leave and (at == start or used + costed[at] <= most * (1 + 1e-9)):
            used, at = used + costed[at], at + 1
        if used > most * (1 + 1e-9) and stages > 1:
            return None
        bounds.append((start, at))
    return tuple(bounds) if at == len(costed) else None


class Parts:
    """Loads of the layers and ends of a model for one size of micro-batch; the same whatever the number of stages and
    replicas."""

    def __init__(self, model: ModelSpec, setup: Setup, cluster: Cluster, drafts: int = 0) -> None:
        loads = Loads(model, setup, cluster)
        kinds = {layer: index for index, layer in enumerate(model.layers)}
        self.layers = {layer: loads.layer(index) for layer, index in kinds.items()}
        self.first, self.last = loads.ends()
        for _ in range(drafts):
            self.last = self.last.plus(loads.draft())
        self.heavy = drafts > 0

    def stages(self, model: ModelSpec, pp: int, by_cost: bool = False) -> tuple[tuple[int, int], ...]:
        """Layers of each stage: evenly by count where that comes out even, nothing but the head is added and not
        `by_cost`; else by the arithmetic of layers and head."""
        count = len(model.layers)
        if count % pp == 0 and not self.heavy and not by_cost:
            size = count // pp
            return tuple((stage * size, (stage + 1) * size) for stage in range(pp))
        rough = {layer: _rough(load) for layer, load in self.layers.items()}
        return split([rough[layer] for layer in model.layers], pp, 0.0, _rough(self.last))


def work(model: ModelSpec, setup: Setup, cluster: Cluster, stages: tuple[tuple[int, int], ...] | None = None,
         drafts: int = 0, parts: Parts | None = None) -> Work:
    """The work of a step. `stages`: layers of each; None: see `Parts.stages`."""
    parts = parts or Parts(model, setup, cluster, drafts)
    bounds = stages or parts.stages(model, setup.layout.pp)
    made = []
    for number, (start, stop) in enumerate(bounds):
        load = nothing()
        for layer, times in Counter(model.layers[start:stop]).items():
            load = load.plus(parts.layers[layer], times)
        for end, here in ((parts.first, number == 0), (parts.last, number == len(bounds) - 1)):
            load = load.plus(end) if here else load
        made.append(_sent_on(load, model, setup, cluster))
    keeps = max((parameters(model, setup, range(*one)) for one in bounds), key=lambda one: one.total)
    return Work(tuple(made), _replicas(keeps, setup, cluster), _optimizer(keeps, setup, cluster), setup.zero == 3)


def stages_of(model: ModelSpec, setup: Setup, cluster: Cluster, drafts: int = 0) -> tuple[tuple[int, int], ...]:
    """Layers of each stage, see `Parts.stages`."""
    return Parts(model, setup, cluster, drafts).stages(model, setup.layout.pp)


def _rough(load: Load) -> float:
    return float((load.forward + load.backward)[: COLUMN["messages"]].sum())


def _sent_on(load: Load, model: ModelSpec, setup: Setup, cluster: Cluster) -> Load:
    """With the residual stream to the next stage, and its gradient back, once for each chunk."""
    layout = setup.layout
    if layout.pp == 1:
        return load
    sent = setup.virtual * setup.rows * model.hidden_size * ITEM / layout.tp
    inside, across = ring(sent, group(layout.pp, layout.tp * layout.dp, cluster), cluster)
    for way in (load.forward, load.backward):
        way[COLUMN["inside"]] += inside
        way[COLUMN["network"]] += across
        way[COLUMN["messages"]] += setup.virtual
    return load


def parameters(model: ModelSpec, setup: Setup, layers: range) -> Held:
    """Parameters on one rank of the stage that holds `layers`; a tied embedding is on the first and the last."""
    dense = experts = 0.0
    last = layers.stop == len(model.layers)
    for family in model.families:
        word = family.role.split(".")[0]
        if is_tower(family) or is_mtp(family, model) or word == "unused":
            continue
        if family.layers:
            here = float(bisect_left(family.layers, layers.stop) - bisect_left(family.layers, layers.start))
        elif word in FIRST:
            here = float(layers.start == 0 or (last and model.tied_embeddings))
        else:
            here = float(last or word not in LAST)
        count, routed = held(family, model, setup, here)
        dense, experts = dense + (0.0 if routed else count), experts + (count if routed else 0.0)
    return Held(dense, experts)


def shards(setup: Setup) -> tuple[int, int]:
    """Ranks that hold the same weights: (all but experts, experts)."""
    layout = setup.layout
    return layout.dp, max(1, layout.tp * layout.dp // (layout.ep * layout.expert_tp))


def _replicas(keeps: Held, setup: Setup, cluster: Cluster) -> Vector:
    """Gradients summed over replicas and weights gathered: a ring sends (n-1)/n of what is reduced or gathered. Shared
    weights (zero 3) are gathered twice and reduced for each micro-batch."""
    vector = np.zeros(len(COLUMNS))
    if setup.frozen:
        return vector
    layout = setup.layout
    gradient, times = setup.gradient_bytes, 1
    gathered = gradient if setup.zero == 0 else ITEM
    if setup.zero == 3:
        gathered, times = 2 * ITEM, setup.micro_batches
    strides = layout.tp, layout.ep * layout.expert_tp
    for count, ranks, stride in zip(keeps, shards(setup), strides, strict=True):
        sent = times * count * (gradient + gathered) * (ranks - 1) / ranks
        inside, across = ring(sent, group(ranks, stride, cluster), cluster)
        vector[COLUMN["inside"]] += inside
        vector[COLUMN["network"]] += across
    return vector


def _optimizer(keeps: Held, setup: Setup, cluster: Cluster) -> Vector:
    vector = np.zeros(len(COLUMNS))
    if not setup.frozen:
        parts = shards(setup) if setup.zero else (1, 1)
        own = sum(count / part for count, part in zip(keeps, parts, strict=True))
        vector[COLUMN["pointwise"]] = own * OPTIMIZER_BYTES / cluster.device.memory_bandwidth
    return vector


def bubbles(setup: Setup) -> float:
    """Micro-batches' worth of time that a stage waits: (pp - 1) / virtual; of a zero-bubble schedule, which fills the
    gaps with the weights' gradients, a third of it (arXiv:2401.10241, ZB-H1)."""
    idle = (setup.layout.pp - 1) / setup.virtual
    return idle / 3 if setup.schedule == "zero-bubble" else idle


def seconds(made: Work, setup: Setup, reached: Reached) -> Step:
    """The time of the step: m times the slowest stage, the bubble at the mean of the others, replicas, optimiser."""
    each, hosted = costs(reached, setup.grouped), np.zeros(len(COLUMNS))
    hosted[COLUMN["launches"]], hosted[COLUMN["layers"]] = reached.launch, reached.launch_expert
    vectors = [load.forward + load.backward + (load.forward if setup.recompute == "full" else
               load.core if setup.recompute == "selective" else 0.0) for load in made.stages]
    device = np.array([float(vector @ each) for vector in vectors])
    host = np.array([float(vector @ hosted) for vector in vectors])
    times = (device**SMOOTH + host**SMOOTH) ** (1 / SMOOTH)
    slowest, pp = int(times.argmax()), len(times)
    others = (float(times.sum()) - float(times[slowest])) / (pp - 1) if pp > 1 else 0.0
    busy, idle = setup.micro_batches * float(times[slowest]), bubbles(setup) * others
    sent, update = float(made.replicas @ each), float(made.optimizer @ each)
    shown = max(reached.exposed * sent, sent - busy) if made.overlapped else reached.exposed * sent
    total = busy + idle + shown + update + reached.step
    causes = {cause: setup.micro_batches * float(sum(vectors[slowest][COLUMN[name]] * each[COLUMN[name]]
                                                     for name in names)) for cause, names in CAUSES.items()}
    causes |= {"host": busy - setup.micro_batches * float(device[slowest]), "pipeline bubble": idle,
               "replicas": shown, "optimiser": update, "fixed": reached.step}
    return Step(total, {cause: value for cause, value in causes.items() if value > 0}, idle / total)
