"""The rows of a phase: operations where calls were grouped to them, equal calls of all layers together where not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import get_args

from dayzero.ops import in_order
from dayzero.schema import Noun, OpCall, OpGraph, Phase
from dayzero.schema.graph import Length, Operation, PhaseName


class Item(Noun, frozen=True, kw_only=True):
    """One row."""

    op: str
    """Operator: of the registry (linear, attention ...), or of the library where calls are not grouped."""
    kind: str
    """Which one: variant of an operation, kind of a call; may be empty."""
    module: str
    """Dotted path with `{L}` for the number of a layer and `*` for other numbers; empty: the model itself."""
    phase: PhaseName
    """The phase it belongs to."""
    count: float
    """How often it runs; of one layer on average, in a view of one layer."""
    flops: float
    """Of all runs together."""
    bytes: float
    """Of all runs together."""
    dtype: str
    """dtype of the activations, such as bf16."""
    detail: str
    """Axes of an operation, shapes of a call."""
    axes: dict[str, Length] = {}
    """Axes of an operation by name; empty: it is none."""
    calls: dict[str, float]
    """Operator calls that it consists of."""

    @property
    def name(self) -> str:
        """`linear (head)`, `attention`."""
        return f"{self.op} ({self.kind})" if self.kind and self.kind != self.op else self.op

    @property
    def intensity(self) -> float | None:
        """Operations for each byte; None: it moves nothing."""
        return self.flops / self.bytes if self.bytes else None


def phases(graph: OpGraph) -> tuple[Phase, ...]:
    """The phases that were traced, in the order in which they run."""
    return tuple(graph.phases[name] for name in get_args(PhaseName) if name in graph.phases)


def items(graph: OpGraph, phase: PhaseName, *, calls: bool = False) -> tuple[Item, ...]:
    """The rows of a phase, in the order in which they first ran; `calls`: calls also where there are operations."""
    grouped = [] if calls else [operation for operation in graph.operations if operation.phase == phase]
    if grouped:
        return tuple(map(of_operation, grouped))
    layers = layer_list(graph)
    merged: dict[tuple[object, ...], list[OpCall]] = {}
    for call in graph.operators:
        if call.phase == phase:
            module = general(call.module, layers)
            merged.setdefault((module, call.op, call.kind, call.inputs, call.outputs, call.dtype), []).append(call)
    return tuple(of_calls(str(key[0]), alike) for key, alike in merged.items())


def of_operation(operation: Operation) -> Item:
    """An operation as a row; its axes in the order of the definition."""
    axes = in_order(operation)
    detail = ", ".join(f"{name} {length:g}" if isinstance(length, float) else f"{name} {length}"
                       for name, length in axes.items())
    return Item(op=operation.op, kind=operation.variant, module=operation.module, phase=operation.phase,
                count=operation.count, flops=operation.flops, bytes=operation.bytes, dtype=operation.dtype,
                detail=detail, axes=axes, calls=dict(operation.calls))


def of_calls(module: str, calls: Iterable[OpCall]) -> Item:
    """Equal calls as a row."""
    together = list(calls)
    first, count = together[0], sum(call.count for call in together)
    return Item(op=first.op, kind=first.kind, module=module, phase=first.phase, count=count,
                flops=sum(call.flops for call in together), bytes=sum(call.bytes for call in together),
                dtype=first.dtype, detail=first.shapes, calls={first.op: count})


def layer_list(graph: OpGraph) -> str | None:
    """Dotted path of the list of layers: of the modules whose children are numbered as the layers are, the one with
    most cost; without modules what lies above `{L}` in most operations. None: there is none."""
    indices = {index for kind in graph.layer_kinds for index in kind.layers}
    numbers: dict[str, set[int]] = {}
    for node in graph.modules:
        parent, _, name = node.path.rpartition(".")
        if name.isdecimal():
            numbers.setdefault(parent, set()).add(int(name))
    found = [parent for parent, children in numbers.items() if indices and children >= indices]
    if not found:
        named = Counter(each.module.partition("{L}")[0] for each in graph.operations if "{L}" in each.module)
        return next((path.rstrip(".") for path, _ in named.most_common(1)), None)
    if len(found) == 1:
        return found[0]
    cost = dict.fromkeys(found, 0)
    for call in graph.operators:
        for parent in found:
            if call.phase != "towers" and call.module.startswith(f"{parent}."):
                cost[parent] += call.flops
    return max(found, key=lambda parent: (cost[parent], -len(parent)))


def layer_of(module: str, layers: str | None) -> int | None:
    """Number of the layer that a module is in; None: it is in none."""
    if layers is None or not module.startswith(f"{layers}." if layers else ""):
        return None
    number = module[len(layers) + 1 if layers else 0:].partition(".")[0]
    return int(number) if number.isdecimal() else None


def general(module: str, layers: str | None) -> str:
    """The path with `{L}` for the number of the layer and `*` for other numbers."""
    at = len(layers.split(".")) if layers else 0
    parts, inside = module.split("."), layer_of(module, layers) is not None
    return ".".join("{L}" if inside and index == at else "*" if part.isdecimal() else part
                    for index, part in enumerate(parts))
