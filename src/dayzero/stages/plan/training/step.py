"""Seconds of a training step: micro-batches through the stages, the bubble, replicas' gradients, the optimiser, what
goes to the host and back. Of one way to train or of many."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dayzero.arrays import Value, choose, largest
from dayzero.data.training import Reached
from dayzero.schema import Cluster, ModelSpec

from .dealing import Chunks, even, split
from .kinds import Kinds, Stages
from .load import COLUMN, COLUMNS, ITEM, WEIGHTED, Load, Loads, Vector, nothing
from .setup import FULL, PRODUCTS, SELECTIVE, Setup, Ways
from .states import holdings, most, optimizer, replicas, to_host
from .topology import group, ring

SMOOTH = 4
"""Exponent of the norm that joins the host's time and the device's, of which the longer one counts."""
CAUSES = {
    "matrix products": ("matrix16", "matrix8", "matrix4", "surface"), "attention": ("attention", "scores", "scan"),
    "experts": ("experts16", "experts8", "experts4", "routed"), "pointwise and casts": ("pointwise", "cast"),
    "tensor and context parallel": ("inside", "network", "exchange", "exchange_network", "messages"),
    "expert parallel": ("dispatch", "dispatch_network"), "kernel starts": ("launches",),
}  # fmt: skip
"""Columns of each cause that a step's time is told by."""


class Spent(NamedTuple):
    """Seconds of one micro-batch in each kind of layer and in the ends. Shapes [kinds] or [kinds, ways]."""

    forward: Vector
    """Of the device, forward."""
    backward: Vector
    """Of the device, backward."""
    core: Vector
    """Of forward what selective recomputation repeats."""
    products: Vector
    """Of products with weights, forward; their gradients take as much."""
    host: Vector
    """Of the host, forward."""
    host_backward: Vector
    """Of the host, backward."""
    hidden: Vector
    """Of the ring's exchange forward what attention hides, already taken from `forward`."""
    hidden_backward: Vector
    """The same backward."""


class Beside(NamedTuple):
    """Seconds of a step beside the micro-batches' computing."""

    replicas: Value
    """Gradients and weights between replicas."""
    optimiser: Value
    """The optimiser's step."""
    states: Value
    """The optimiser's states from the host and back, which nothing hides."""
    stream: Value
    """Gradients to the host and weights from it, both ways at the same time, behind computing."""


class Timed(NamedTuple):
    """Parts of the time of a step, of one way or of many."""

    seconds: Value
    """In all."""
    slowest: Value
    """Place of the slowest stage among those that differ."""
    busy: Value
    """All micro-batches in the slowest stage."""
    idle: Value
    """Pipeline bubble."""
    shown: Value
    """Sending between replicas that nothing hides."""
    beside: Beside
    """What else there is, with the part of `stream` that nothing hides."""

    @property
    def bubble(self) -> Value:
        """Share of the time in which a stage waits for the pipeline to fill and drain."""
        return self.idle / self.seconds


class Work(NamedTuple):
    """A step at stated rates; `seconds` turns it into time."""

    parts: Load
    """One micro-batch in each kind of layer and in the ends. Shapes [columns, kinds and ends]."""
    sent: Load
    """What a stage sends on for one micro-batch."""
    stages: Stages
    """What each stage holds."""
    replicas: Vector
    """Gradients and weights between replicas of the stage that holds most, a step."""
    optimizer: Vector
    """The optimiser's step of that stage."""
    host: tuple[Value, Value]
    """(seconds of states, seconds of gradients or weights) between device and host, of that stage."""


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
    shares |= {"exchange": reached.inside, "exchange_network": reached.network}
    vector = np.array([1 / shares[name] if name in shares else 0.0 for name in COLUMNS])
    vector[COLUMN["messages"]], vector[COLUMN["launches"]] = reached.message, reached.kernel
    return vector


def hosted(reached: Reached) -> Vector:
    """Seconds of the host for each count, over COLUMNS."""
    vector = np.zeros(len(COLUMNS))
    vector[COLUMN["launches"]], vector[COLUMN["layers"]] = reached.launch, reached.launch_expert
    return vector


def spent(parts: Load, reached: Reached, setup: Setup | Ways) -> Spent:
    """What the loads of kinds of layers and of the ends take."""
    device, host = costs(reached, setup.grouped), hosted(reached)
    products = np.zeros(len(COLUMNS))
    products[WEIGHTED] = device[WEIGHTED]
    forward, backward, core, weighted, started, ended = (np.tensordot(each, load, 1) for each, load in (
        (device, parts.forward), (device, parts.backward), (device, parts.core), (products, parts.forward),
        (host, parts.forward), (host, parts.backward)))
    hidden = [_hidden(load, device, setup) for load in (parts.forward, parts.backward)]
    return Spent(forward - hidden[0], backward - hidden[1], core, weighted, started, ended, *hidden)


def _hidden(load: Vector, device: Vector, setup: Setup | Ways) -> Vector:
    """What attention hides of the ring's exchange: the keys and values of the next rank come while those of the last
    one are attended to, which is so for all rounds but one (arXiv:2310.01889)."""
    rounds = (setup.layout.cp - 1) / setup.layout.cp
    names = (("exchange", "exchange_network"), ("attention",))
    ring, core = (sum(device[COLUMN[name]] * load[COLUMN[name]] for name in each) for each in names)
    found: Vector = np.minimum(ring, rounds * core)
    return found


class Parts:
    """Loads of the layers and ends of a model for one size of micro-batch, or for many; the same whatever the number of
    stages and replicas."""

    def __init__(self, model: ModelSpec, setup: Setup | Ways, cluster: Cluster, drafts: int = 0,
                 kinds: Kinds | None = None) -> None:
        loads = Loads(model, setup, cluster)
        self.kinds = kinds or Kinds(model)
        first, last = loads.ends()
        for _ in range(drafts):
            last = last.plus(loads.draft())
        every = [*(loads.layer(index) for index in self.kinds.examples), first, last, nothing(setup.rows)]
        self.loads = Load(*(np.stack(way, axis=1) for way in zip(*every, strict=True)))
        self.heavy = drafts > 0

    def chunks(self, model: ModelSpec, pp: int, by_cost: bool = False) -> Chunks:
        """Layers of each stage: evenly by count where that comes out even, nothing but the head is added and not
        `by_cost`; else by the arithmetic of layers and head."""
        if len(model.layers) % pp == 0 and not self.heavy and not by_cost:
            return even(len(model.layers), pp)
        rough = (self.loads.forward + self.loads.backward)[: COLUMN["messages"]].sum(axis=0)
        return split([float(rough[kind]) for kind in self.kinds.of], pp, 0.0, float(rough[-2]))


def work(model: ModelSpec, setup: Setup, cluster: Cluster, chunks: Chunks | None = None, drafts: int = 0,
         parts: Parts | None = None) -> Work:
    """The work of a step. `chunks`: layers of each stage or, interleaved, of each chunk; None: see `Parts.chunks`."""
    parts = parts or Parts(model, setup, cluster, drafts)
    stages = parts.kinds.stages(chunks or parts.chunks(model, setup.layout.pp), setup.layout.pp)
    keeps = most(holdings(model, setup, parts.kinds), stages)
    return Work(parts.loads, sent_on(model, setup, cluster), stages, replicas(keeps, setup, cluster),
                optimizer(keeps, setup, cluster), to_host(keeps, setup, cluster))


def stages_of(model: ModelSpec, setup: Setup, cluster: Cluster, drafts: int = 0) -> Chunks:
    """Layers of each stage, see `Parts.chunks`."""
    return Parts(model, setup, cluster, drafts).chunks(model, setup.layout.pp)


def sent_on(model: ModelSpec, setup: Setup | Ways, cluster: Cluster) -> Load:
    """The residual stream to the next stage, and its gradient back, once for each chunk."""
    layout, load = setup.layout, nothing(setup.rows)
    piped = layout.pp > 1
    sent = choose(piped, setup.virtual * setup.rows * model.hidden_size * ITEM / layout.tp, 0.0)
    inside, across = ring(sent, group(layout.pp, layout.tp * layout.dp, cluster), cluster)
    for way in (load.forward, load.backward):
        way[COLUMN["inside"]] += inside
        way[COLUMN["network"]] += across
        way[COLUMN["messages"]] += choose(piped, setup.virtual, 0)
    return load


def timed(each: Spent, sent: Value, stages: Stages, beside: Beside, setup: Setup | Ways, reached: Reached) -> Timed:
    """The time of a step: m times the slowest stage, the bubble at the mean of the others, what replicas send and
    nothing hides, the optimiser. `sent`: seconds of a stage's sending on, for one micro-batch."""
    again, host = _again(each, setup)
    device = np.tensordot(stages.counts, each.forward + each.backward + again, 1) + sent
    launched = np.tensordot(stages.counts, each.host + each.host_backward + host, 1)
    times = (device**SMOOTH + launched**SMOOTH) ** (1 / SMOOTH)
    slowest = times.argmax(axis=0)
    longest, pp = times.max(axis=0), setup.layout.pp
    others = largest(pp - 1, 1)
    gradients = np.tensordot(stages.counts, each.products, 1)
    filled = choose(setup.zero_bubble, 0.0 if setup.frozen else 2.0, 0.0) * gradients
    mean = (np.tensordot(stages.alike, times - filled, 1) - np.take_along_axis(
        times - filled, np.expand_dims(slowest, 0), 0)[0]) / others
    busy, idle = setup.micro_batches * longest, (pp - 1) / setup.virtual * largest(mean, 0.0)
    hides = choose(setup.zero >= 2, busy, longest)
    shown = largest(reached.exposed * beside.replicas, beside.replicas - hides)
    stream = largest(beside.stream - busy, 0.0)
    total = busy + idle + shown + beside.optimiser + beside.states + stream + reached.step
    return Timed(total, slowest, busy, idle, shown, beside._replace(stream=stream))


def _again(each: Spent, setup: Setup | Ways) -> tuple[Value, Value]:
    """(device, host): what is computed once more."""
    some = each.core + 0.5 * each.products
    device = choose(setup.redo == FULL, each.forward, choose(setup.redo == PRODUCTS, some, choose(
        setup.redo == SELECTIVE, each.core, 0.0)))
    return device, choose(setup.redo == FULL, each.host, choose(setup.redo == PRODUCTS, 0.5 * each.host, 0.0))


def whole(made: Work, setup: Setup, reached: Reached) -> Timed:
    """The parts of the time of a step of one way."""
    each = costs(reached, setup.grouped)
    beside = Beside(float(each @ made.replicas), float(each @ made.optimizer), *made.host)
    sent = each @ (made.sent.forward + made.sent.backward)
    return timed(spent(made.parts, reached, setup), sent, made.stages, beside, setup, reached)


def seconds(made: Work, setup: Setup, reached: Reached) -> Step:
    """The time of the step, by cause."""
    found, each, micro = whole(made, setup, reached), costs(reached, setup.grouped), setup.micro_batches
    vector = made.sent.forward + made.sent.backward + _repeated(made.parts, setup) @ made.stages.counts[found.slowest]
    causes = {cause: micro * float(sum(vector[COLUMN[name]] * each[COLUMN[name]] for name in names))
              for cause, names in CAUSES.items()}
    once = spent(made.parts, reached, setup)
    hidden = once.hidden + once.hidden_backward + (once.hidden if setup.redo == FULL else 0.0)
    behind = micro * float(hidden @ made.stages.counts[found.slowest])
    causes["tensor and context parallel"] -= behind
    causes |= {"host": float(found.busy) - micro * float(vector @ each) + behind, "pipeline bubble": float(found.idle),
               "replicas": float(found.shown), "optimiser": float(found.beside.optimiser),
               "offload": float(found.beside.states + found.beside.stream), "fixed": reached.step}
    return Step(float(found.seconds), {cause: value for cause, value in causes.items() if value > 0},
                float(found.bubble))


def _repeated(parts: Load, setup: Setup) -> Vector:
    """Forward, backward and what is computed once more. Shape [columns, kinds and ends]."""
    once = parts.forward + parts.backward
    if setup.redo == FULL:
        return once + parts.forward
    if setup.redo == PRODUCTS:
        half = np.zeros_like(parts.forward)
        half[WEIGHTED] = 0.5 * parts.forward[WEIGHTED]
        return once + parts.core + half
    return once + parts.core if setup.redo == SELECTIVE else once
