"""Which operations of one layer are the same on both sides, and how the others differ."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Literal, NamedTuple

from dayzero.ops import axes_of, cost
from dayzero.schema.graph import Operation

ITEMS = ("item", "weight_item", "state_item", "score_item", "index_item")
"""Axes that are bytes of a value: they say how something is stored, not what is computed."""
ADDS = {"linear": "outer", "convolution": "channels", "norm": "tokens", "rotary": "heads"}
"""Operator -> the axis along which one operation may be divided into several."""
MOST = 8
"""Operations among which a division is looked for."""
Workload = tuple[int, int, int]
"""(batch, tokens, context)"""


class Place(NamedTuple):
    """Layers of one kind, or what is in no layer."""

    kind: str
    layers: tuple[int, ...]

    def has(self, operation: Operation) -> bool:
        """Whether any of the layers has it."""
        return not operation.layers if not self.layers else not set(self.layers).isdisjoint(operation.layers)

    def share(self, operation: Operation) -> float:
        """Share of its runs that are in these layers."""
        return len(set(self.layers).intersection(operation.layers)) / len(operation.layers) if self.layers else 1.0


class Difference(NamedTuple):
    """One difference in one layer."""

    status: Literal["code", "card", "axes", "cut"]
    op: str
    module: str
    detail: str
    flops: float
    bytes: float

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What it has in common with the same difference elsewhere."""
        return self.status, self.op, self.module, self.detail


class One(NamedTuple):
    """One operation of one layer, once."""

    operation: Operation
    sizes: dict[str, int]
    flops: float
    bytes: float

    @property
    def is_pointwise(self) -> bool:
        """Whether it has elements and nothing else."""
        return "elements" in self.sizes

    @property
    def leaf(self) -> str:
        """Last part of its module's path."""
        return self.operation.module.rpartition(".")[2]

    def told(self, axis: str) -> str:
        """Length of an axis as an expression, or as a number."""
        length = self.operation.axes.get(axis, 0)
        return length if isinstance(length, str) else f"{length:,.0f}"

    @property
    def name(self) -> str:
        """`linear (head)`"""
        one = self.operation
        return f"{one.op} ({one.variant})" if one.variant else one.op


def compared(code: list[Operation], card: list[Operation], workload: Workload) -> Iterator[Difference]:
    """The differences in one layer of the place."""
    for op in dict.fromkeys(one.op for one in (*code, *card)):
        mine, other = (_each([one for one in side if one.op == op], workload) for side in (code, card))
        _cancel(mine, other)
        yield from _cuts(mine, other)
        yield from _pairs(mine, other)
        yield from (_alone("code", one) for one in mine)
        yield from (_alone("card", one) for one in other)


def _each(operations: list[Operation], workload: Workload) -> list[One]:
    """Every run of the operations in one of the layers that have them."""
    batch, tokens, context = workload
    found = []
    for operation in operations:
        whole = cost(operation, batch=batch, tokens=tokens, context=context)
        axes = axes_of(operation, batch=batch, tokens=tokens, context=context)
        sizes = {name: round(length) for name, length in axes.items() if name not in ITEMS}
        one = One(operation, sizes, whole.flops / operation.count, whole.bytes / operation.count)
        runs = max(1, round(operation.count / max(1, len(operation.layers))))
        found += [one] * runs
    return found


def _cancel(code: list[One], card: list[One]) -> None:
    """Take away what both have with the same lengths, those of the same name first."""
    for same_name in (True, False):
        for one in list(code):
            equal = (two for two in card if two.sizes == one.sizes)
            twin = next((two for two in equal if not same_name or two.leaf == one.leaf), None)
            if twin is not None:
                code.remove(one)
                card.remove(twin)


def _cuts(code: list[One], card: list[One]) -> Iterator[Difference]:
    """One operation on one side that is several on the other: fused projections, convolutions, norms."""
    for whole, parts, is_code in ((code, card, True), (card, code, False)):
        for one in list(whole):
            pieces = _pieces(one, parts)
            if pieces:
                whole.remove(one)
                for piece in pieces:
                    parts.remove(piece)
                names = ", ".join(piece.leaf or piece.name for piece in pieces)
                other = sum(piece.bytes for piece in pieces)
                told = f"one in the code for {names}" if is_code else f"{names} in the code for one on the card"
                yield Difference("cut", one.name, one.operation.module if is_code else pieces[0].operation.module, told,
                                 0.0, one.bytes - other if is_code else other - one.bytes)


def _pieces(one: One, parts: list[One]) -> tuple[One, ...]:
    """Operations that together do what `one` does; empty: there are none."""
    axis = ADDS.get(one.operation.op)
    if axis is None:
        return ()
    rest = {name: size for name, size in one.sizes.items() if name != axis}
    alike = [two for two in parts if {name: size for name, size in two.sizes.items() if name != axis} == rest][:MOST]
    return next((chosen for number in range(2, len(alike) + 1) for chosen in combinations(alike, number)
                 if sum(two.sizes[axis] for two in chosen) == one.sizes[axis]), ())


def _pairs(code: list[One], card: list[One]) -> Iterator[Difference]:
    """Operations that are the same one with other lengths: those of one name, pointwise ones of as many elements, or
    the only ones of their operator."""
    for one in list(code):
        twin = next((two for two in card if _is_twin(one, two)), None)
        if twin is None and len(code) == len(card) == 1 and not one.is_pointwise:
            twin = card[0]
        if twin is None:
            continue
        code.remove(one)
        card.remove(twin)
        told = ", ".join(f"{name} {one.told(name)} in the code, {twin.told(name)} on the card"
                         for name in {**one.sizes, **twin.sizes} if one.sizes.get(name) != twin.sizes.get(name))
        yield Difference("axes", one.name, one.operation.module, told, one.flops - twin.flops, one.bytes - twin.bytes)


def _is_twin(one: One, two: One) -> bool:
    if one.is_pointwise:
        return one.sizes.get("elements") == two.sizes.get("elements")
    return one.leaf == two.leaf and one.operation.variant == two.operation.variant


def _alone(status: Literal["code", "card"], one: One) -> Difference:
    sign = 1 if status == "code" else -1
    told = ((name, one.told(name)) for name in one.sizes)
    detail = ", ".join(f"{name} {length}" for name, length in told if length not in ("0", "1"))
    return Difference(status, one.name, one.operation.module, detail, sign * one.flops, sign * one.bytes)
