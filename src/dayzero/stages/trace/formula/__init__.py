"""The graph of a model without its code: the operations that follow from a ModelSpec and the operators' definitions.

Every weight family that is a matrix is a product with its real shape; what mixes tokens, what routes and what lies
between products follow from the kinds of layers. No torch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from dayzero.data.vocabulary import form_of
from dayzero.errors import UsageError
from dayzero.ops import cost
from dayzero.schema import LayerKind, ModelSpec, ModuleNode, OpGraph, Phase
from dayzero.schema.graph import Operation, PhaseName
from dayzero.stages.trace.capture.expansion import EXPANSION

from .between import between
from .mixing import mixing
from .parts import Part, weights_of
from .products import experts, products

NO_CODE = "what only the model's code shows, as none ran"
"""How the entry of `missing` begins that every such graph has."""


def graph(model: ModelSpec, *, batch: int = 1, tokens: int = 64, context: int = 64, why: str = "") -> OpGraph:
    """Operations of a prefill of `batch` sequences of `tokens` tokens, and of one decode step of `batch` sequences with
    `context` tokens in the cache, as `trace` gives them, with expressions in batch, tokens and context as axes. There
    are no calls, no control flow and no classes of modules. `why`: what kept the code from running. Raises UsageError
    for sizes below one."""
    for name, size in (("batch", batch), ("tokens", tokens), ("context", context)):
        if size < 1:
            raise UsageError(f"{name} is {size}", f"give a {name} of at least 1")
    start = time.perf_counter()
    found = _parts(model)
    phases: list[tuple[PhaseName, int, int]] = [("prefill", tokens, 0), ("decode", 1, context)]
    operations = tuple(_operation(part, phase, model.dtype, batch, new, cached)
                       for phase, new, cached in phases for part in found if cached or part.variant != EXPANSION)
    return OpGraph(
        parameters=model.parameters, operators=(), modules=tuple(_modules(model)), control_flow=(),
        phases={phase: _totals(phase, batch, new, cached, operations) for phase, new, cached in phases},
        missing=(f"{NO_CODE}: {why}" if why else NO_CODE,), layer_kinds=tuple(_layer_kinds(model)),
        operations=operations,
        source=f"{model.name}: from operator definitions, config and tensors, not from code",
        seconds=round(time.perf_counter() - start, 3))


def _parts(model: ModelSpec) -> list[Part]:
    """All operations of one forward pass, in the order in which a decoder runs them."""
    weights = list(weights_of(model))
    found = [*products(model, weights), *experts(model, weights), *mixing(model, weights), *between(model, weights)]
    return sorted(found, key=_order)


def _order(part: Part) -> tuple[int, int, int, str]:
    """Embedding, positions, layers from the first on, final norm, head."""
    ends: Mapping[str, int] = {"embedding": 0, "rotary": 1, "norm": 4, "linear": 5}
    stage = 3 if part.layers else ends.get(part.op, 2)
    leaf = part.module.rpartition(".")[2]
    feeding = part.op in ("router", "experts") or any(word in part.module for word in ("mlp", "moe", "feed_forward"))
    return stage, part.layers[0] if part.layers else 0, int(feeding), leaf


def _operation(part: Part, phase: PhaseName, dtype: str, batch: int, tokens: int, context: int) -> Operation:
    """The part with its cost at one workload."""
    bare = Operation(op=part.op, variant=part.variant, module=part.module, layers=part.layers, phase=phase,
                     count=part.times * (len(part.layers) or 1), axes=dict(part.axes), dtype=dtype, flops=0, bytes=0,
                     counted_flops=0, counted_bytes=0, calls={})
    flops, moved = cost(bare, batch=batch, tokens=tokens, context=context)
    return msgspec.structs.replace(bare, flops=round(flops), bytes=round(moved))


def _totals(phase: PhaseName, batch: int, tokens: int, context: int, operations: Iterable[Operation]) -> Phase:
    own = [operation for operation in operations if operation.phase == phase]
    return Phase(name=phase, batch=batch, tokens=tokens, context=context, flops=sum(one.flops for one in own),
                 bytes=sum(one.bytes for one in own), operators=0)


def _layer_kinds(model: ModelSpec) -> Iterator[LayerKind]:
    """Layers that are of the same kinds and have the same weights."""
    held: dict[int, set[int]] = {}
    for number, family in enumerate(model.families):
        for index in family.layers:
            held.setdefault(index, set()).add(number)
    alike: dict[tuple[str, frozenset[int]], list[int]] = {}
    for index, layer in enumerate(model.layers):
        name = f"{layer.attention} + {layer.feed_forward}"
        alike.setdefault((name, frozenset(held.get(index, ()))), []).append(index)
    names = [name for name, _ in alike]
    for position, ((name, _), layers) in enumerate(alike.items()):
        nth = names[:position].count(name) + 1
        yield LayerKind(kind=f"{name} ({nth})" if names.count(name) > 1 else name, layers=tuple(layers))


def _modules(model: ModelSpec) -> Iterator[ModuleNode]:
    """The modules that hold weights and those around them, as far as names tell: layers by number, experts as one."""
    owned: Counter[str] = Counter()
    counts: dict[str, int] = {}
    for family in model.families:
        pattern = form_of(family.pattern)[1] if family.parameters else ""
        for layer in family.layers or ("*",) if pattern else ():
            path = pattern.replace("{L}", str(layer)).replace("{E}", "*")
            owned[path] += family.parameters // (len(family.layers) or 1)
            counts[path] = family.experts if "{E}" in pattern else 1
    known = {""}
    yield ModuleNode(path="", type="", parameters=0)
    for path in sorted(owned, key=_natural):
        steps = path.split(".")
        for depth in range(1, len(steps) + 1):
            inner = ".".join(steps[:depth])
            if inner not in known:
                known.add(inner)
                number = counts.get(path, 1) if "*" in steps[:depth] else 1
                yield ModuleNode(path=inner, type="", parameters=owned.get(inner, 0), count=number)


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in path.split(".")]
