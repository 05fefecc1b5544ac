"""The operations that a model's code runs against those that follow from its card: by how much they differ, and what
the card does not say. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from dayzero.errors import UsageError
from dayzero.graphs import phases
from dayzero.ops import cost
from dayzero.schema import Noun, OpGraph
from dayzero.schema.graph import Operation, PhaseName

from .match import Difference, Place, Workload, compared

__all__ = ["PRODUCTS", "Agreement", "Remark", "Row", "agree"]

PRODUCTS = ("linear", "router", "experts", "attention", "merged_attention", "linear_attention",
            "gated_linear_attention", "state_space")
"""Operators that compute: what both sides must agree on. The others move data."""


class Row(Noun, frozen=True, kw_only=True):
    """All operations of one operator in the layers of one kind."""

    phase: PhaseName
    """The phase."""
    op: str
    """The operator."""
    kind: str
    """Kind of the layers; empty: in no layer."""
    layers: int
    """How many layers there are of the kind; 0: in no layer."""
    code_flops: float
    """By the operator's definition, of what the code runs."""
    card_flops: float
    """The same, of what follows from the card."""
    code_bytes: float
    """By the definition, of what the code runs."""
    card_bytes: float
    """The same, of what follows from the card."""

    @property
    def flops_off(self) -> float | None:
        """Code against card, as a share of the card's: 0.01 is 1 % more in the code; None: the card has none."""
        return _off(self.code_flops, self.card_flops)

    @property
    def bytes_off(self) -> float | None:
        """The same of bytes."""
        return _off(self.code_bytes, self.card_bytes)


class Remark(Noun, frozen=True, kw_only=True):
    """One difference, wherever it occurs."""

    status: Literal["code", "card", "axes", "cut"]
    """code: only the code has the operation; card: only the card; axes: their lengths differ; cut: the same work in
    other operations."""
    op: str
    """The operator, with its variant."""
    module: str
    """Where it is: in the code or, when only the card has it, on the card."""
    phases: tuple[PhaseName, ...]
    """Phases in which it differs."""
    layers: int
    """Layers that have the difference; 0: it is in no layer."""
    detail: str
    """What differs."""
    flops: float
    """Code less card, all layers and phases together."""
    bytes: float
    """The same of bytes."""


class Agreement(Noun, frozen=True, kw_only=True):
    """A trace against a graph without code."""

    code: str
    """Source of the trace."""
    card: str
    """Source of the other."""
    code_parameters: int
    """Parameters that the code declares."""
    card_parameters: int
    """Parameters on the card, all parts of the release together."""
    rows: tuple[Row, ...]
    """By phase, kind of layer and operator."""
    remarks: tuple[Remark, ...]
    """What differs; what costs most first."""

    def flops(self, phase: PhaseName, ops: tuple[str, ...] = PRODUCTS) -> tuple[float, float]:
        """(of the code, of the card) of some operators in a phase, all layers."""
        own = [row for row in self.rows if row.phase == phase and row.op in ops]
        return sum(row.code_flops for row in own), sum(row.card_flops for row in own)

    def off(self, phase: PhaseName, ops: tuple[str, ...] = PRODUCTS) -> float | None:
        """Code against card in flops, as a share of the card's; None: the card has none."""
        return _off(*self.flops(phase, ops))


def agree(code: OpGraph, card: OpGraph) -> Agreement:
    """Compare a trace of real code with a graph from facts, at the workload of the trace. Raises UsageError for a trace
    in which no code ran, or whose calls are not grouped to operations."""
    if not code.operations or not code.operators:
        raise UsageError(f"no code ran: {code.source}", "give a release whose code can be traced, see `dayzero trace`")
    rows: list[Row] = []
    found: dict[tuple[str, ...], list[tuple[PhaseName, Place, Difference]]] = {}
    for phase in (one for one in phases(code) if one.name in card.phases):
        workload = phase.batch, phase.tokens, phase.context
        for place in [*(Place(kind.kind, kind.layers) for kind in code.layer_kinds), Place("", ())]:
            mine, other = ([one for one in graph.operations if one.phase == phase.name and place.has(one)]
                           for graph in (code, card))
            rows += _rows(phase.name, place, mine, other, workload)
            for difference in compared(mine, other, workload):
                found.setdefault(difference.key, []).append((phase.name, place, difference))
    remarks = [_remark(entries) for entries in found.values()]
    return Agreement(code=code.source, card=card.source, code_parameters=code.parameters,
                     card_parameters=card.parameters, rows=tuple(rows),
                     remarks=tuple(sorted(remarks, key=lambda one: (-abs(one.flops), -abs(one.bytes), one.module))))


def _rows(phase: PhaseName, place: Place, code: list[Operation], card: list[Operation], workload: Workload
          ) -> Iterator[Row]:
    for op in dict.fromkeys(one.op for one in (*code, *card)):
        mine, other = (_total(place, [one for one in side if one.op == op], workload) for side in (code, card))
        yield Row(phase=phase, op=op, kind=place.kind, layers=len(place.layers), code_flops=mine[0],
                  card_flops=other[0], code_bytes=mine[1], card_bytes=other[1])


def _total(place: Place, operations: list[Operation], workload: Workload) -> tuple[float, float]:
    """(flops, bytes) in the layers of the place."""
    batch, tokens, context = workload
    flops = moved = 0.0
    for one in operations:
        share = place.share(one)
        whole = cost(one, batch=batch, tokens=tokens, context=context)
        flops, moved = flops + share * whole.flops, moved + share * whole.bytes
    return flops, moved


def _remark(entries: list[tuple[PhaseName, Place, Difference]]) -> Remark:
    """The same difference in several phases and kinds of layers."""
    _, _, one = entries[0]
    layers = {layer for _, place, _ in entries for layer in place.layers}
    return Remark(status=one.status, op=one.op, module=one.module, detail=one.detail, layers=len(layers),
                  phases=tuple(dict.fromkeys(phase for phase, _, _ in entries)),
                  flops=sum(each.flops * max(1, len(place.layers)) for _, place, each in entries),
                  bytes=sum(each.bytes * max(1, len(place.layers)) for _, place, each in entries))


def _off(code: float, card: float) -> float | None:
    if card:
        return code / card - 1
    return None if code else 0.0
