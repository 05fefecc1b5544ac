"""What one layer of each kind costs, and what lies outside of the layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from dayzero.schema import LayerKind, OpCall, OpGraph
from dayzero.schema.graph import PhaseName

from .items import Item, general, items, layer_list, layer_of, of_calls


class KindCost(NamedTuple):
    """The layers of one kind in one phase."""

    kind: LayerKind | None
    """The kind; None: what is in no layer."""
    rows: tuple[Item, ...]
    """What one layer runs, on average over the layers of the kind."""

    @property
    def layers(self) -> int:
        """Layers of the kind; one for what is in none."""
        return len(self.kind.layers) if self.kind else 1

    @property
    def flops(self) -> float:
        """Of one layer."""
        return sum(row.flops for row in self.rows)

    @property
    def bytes(self) -> float:
        """Of one layer."""
        return sum(row.bytes for row in self.rows)


def by_kind(graph: OpGraph, phase: PhaseName) -> tuple[KindCost, ...]:
    """Each kind with the rows of one layer; last what is in no layer. Empty without layer kinds."""
    if not graph.layer_kinds:
        return ()
    if any(operation.phase == phase for operation in graph.operations):
        return _of_operations(graph, phase)
    layers = layer_list(graph)
    kind_of = {index: kind.kind for kind in graph.layer_kinds for index in kind.layers}
    groups: dict[str | None, list[OpCall]] = defaultdict(list)
    for call in graph.operators:
        if call.phase == phase:
            index = layer_of(call.module, layers)
            groups[None if index is None else kind_of.get(index)].append(call)
    costs = [KindCost(kind, _rows(groups[kind.kind], layers, len(kind.layers))) for kind in graph.layer_kinds]
    return (*costs, KindCost(None, _rows(groups[None], layers, 1)))


def _rows(calls: Iterable[OpCall], layers: str | None, count: int) -> tuple[Item, ...]:
    merged: dict[tuple[object, ...], list[OpCall]] = defaultdict(list)
    for call in calls:
        merged[general(call.module, layers), call.op, call.kind, call.inputs, call.outputs, call.dtype].append(call)
    return tuple(_share(of_calls(str(key[0]), alike), 1 / count) for key, alike in merged.items())


def _of_operations(graph: OpGraph, phase: PhaseName) -> tuple[KindCost, ...]:
    operations = [operation for operation in graph.operations if operation.phase == phase]
    pairs = list(zip(operations, items(graph, phase), strict=True))
    costs = []
    for kind in graph.layer_kinds:
        own = set(kind.layers)
        common = [(item, len(own.intersection(operation.layers)) / len(operation.layers))
                  for operation, item in pairs if operation.layers]
        costs.append(KindCost(kind, tuple(_share(item, part / len(own)) for item, part in common if part)))
    return (*costs, KindCost(None, tuple(item for operation, item in pairs if not operation.layers)))


def _share(item: Item, part: float) -> Item:
    """That part of a row."""
    return msgspec.structs.replace(item, count=item.count * part, flops=item.flops * part, bytes=item.bytes * part,
                                   calls={name: count * part for name, count in item.calls.items()})
