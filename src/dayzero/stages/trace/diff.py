"""What differs between two graphs: two revisions of a release, or two models. Without torch.

Operators are compared twice: all of one name together, which holds between any two models, and by their place in the
model, which says where two revisions of one differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from dayzero.graphs import Item, items, layer_list
from dayzero.schema import Noun, OpGraph
from dayzero.schema.graph import Length, PhaseName

Key = Callable[[Item, tuple[str, ...]], tuple[PhaseName, str, str]]
"""What rows are compared by, from a row and the prefixes of its graph: phase, operator, place."""


class Amount(Noun, frozen=True, kw_only=True):
    """What operators come to on one side."""

    count: float
    """Runs."""
    flops: float
    """Of all runs."""
    bytes: float
    """Of all runs."""
    details: tuple[str, ...]
    """Their axes or shapes, sorted."""
    axes: tuple[dict[str, Length], ...]
    """Axes of each that is an operation, once, in the order of `details`."""


class Change(Noun, frozen=True, kw_only=True):
    """Operators that are not the same on both sides."""

    phase: PhaseName
    """The phase."""
    op: str
    """The operator, with its variant."""
    module: str
    """Where it is, below the list of layers or what holds it; empty: in the model itself, or all places together."""
    status: Literal["new", "gone", "changed"]
    """new: only on the second side; gone: only on the first."""
    before: Amount | None
    """On the first side."""
    after: Amount | None
    """On the second."""

    @property
    def what(self) -> tuple[str, ...]:
        """Which of shapes, count, flops and bytes changed."""
        if self.before is None or self.after is None:
            return ()
        names = {"details": "shapes", "count": "count", "flops": "flops", "bytes": "bytes"}
        return tuple(told for field, told in names.items()
                     if getattr(self.before, field) != getattr(self.after, field))


class Side(Noun, frozen=True, kw_only=True):
    """One of the two graphs."""

    source: str
    """What was traced."""
    parameters: int
    """Its parameters."""
    phases: dict[str, dict[str, int]]
    """Phase -> its sizes, flops, bytes and operators."""


class Listed(Noun, frozen=True, kw_only=True):
    """Things of one sort that only one side has."""

    new: tuple[str, ...]
    """Only on the second side."""
    gone: tuple[str, ...]
    """Only on the first."""


class Diff(Noun, frozen=True, kw_only=True):
    """What differs between two graphs."""

    before: Side
    """The first side."""
    after: Side
    """The second side."""
    calls: Listed
    """Calls by name and dtype, such as `aten.mm bf16`: what a backend has to implement."""
    operators: tuple[Change, ...]
    """All of one operator together, in each phase."""
    places: tuple[Change, ...]
    """By place in the model."""
    layer_kinds: Listed
    """Kinds with their number of layers: `58 x latent + experts`."""
    control_flow: Listed
    """Places that ask for values: file, kind, answer, and whether they ran. A line that moved is no change."""
    missing: Listed
    """What could not be traced."""
    stand_ins: Listed
    """Calls to kernel libraries."""

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        lists = (self.calls, self.layer_kinds, self.control_flow, self.missing, self.stand_ins)
        return (not self.operators and not self.places and not any(each.new or each.gone for each in lists)
                and self.before.parameters == self.after.parameters and self.before.phases == self.after.phases)


def compare(before: OpGraph, after: OpGraph) -> Diff:
    """What is new, gone or changed in `after`."""
    return Diff(
        before=_side(before), after=_side(after),
        calls=_listed(before, after, lambda graph: (f"{call.op} {call.dtype}".rstrip() for call in graph.operators)),
        operators=tuple(_changes(before, after, lambda item, _prefixes: (item.phase, item.name, ""))),
        places=tuple(_changes(before, after, lambda item, prefixes: (item.phase, item.name,
                                                                     _relative(item.module, prefixes)))),
        layer_kinds=_listed(before, after, lambda graph: (f"{len(kind.layers)} x {kind.kind}"
                                                          for kind in graph.layer_kinds)),
        control_flow=_listed(before, after, _sites),
        missing=_listed(before, after, lambda graph: graph.missing),
        stand_ins=_listed(before, after, lambda graph: (f"{each.op} for {each.call}" for each in graph.stand_ins)))


def _side(graph: OpGraph) -> Side:
    fields = ("batch", "tokens", "context", "flops", "bytes", "operators")
    return Side(source=graph.source, parameters=graph.parameters, phases={
        phase.name: {name: getattr(phase, name) for name in fields} for phase in graph.phases.values()})


def _sites(graph: OpGraph) -> Iterator[str]:
    for site in graph.control_flow:
        how = f"assumed {site.assumed}" if site.executed else "only in the source"
        yield f"{site.kind} in {site.file}, {how}"


def _listed(before: OpGraph, after: OpGraph, names: Callable[[OpGraph], Iterable[str]]) -> Listed:
    first, second = dict.fromkeys(names(before)), dict.fromkeys(names(after))
    return Listed(new=tuple(name for name in second if name not in first),
                  gone=tuple(name for name in first if name not in second))


def _prefixes(graph: OpGraph) -> tuple[str, ...]:
    """Paths of the list of layers and of the two modules around it: models nest them under different names."""
    layers = layer_list(graph) or ""
    inner = layers.rpartition(".")[0]
    return tuple(f"{path}." for path in (layers, inner, inner.rpartition(".")[0]) if path)


def _relative(module: str, prefixes: tuple[str, ...]) -> str:
    """The path below the first of the prefixes that it has."""
    return next((module.removeprefix(prefix) for prefix in prefixes if module.startswith(prefix)), module)


def _changes(before: OpGraph, after: OpGraph, key: Key) -> Iterator[Change]:
    """New ones, then those that are gone, then the changed, each with the dearest first."""
    first, second = _amounts(before, key), _amounts(after, key)
    found = []
    for phase, op, module in {**second, **first}:
        old, new = first.get((phase, op, module)), second.get((phase, op, module))
        if old != new:
            status: Literal["new", "gone", "changed"] = "new" if old is None else "gone" if new is None else "changed"
            found.append(Change(phase=phase, op=op, module=module, status=status, before=old, after=new))
    order = ("new", "gone", "changed")
    yield from sorted(found, key=lambda change: (order.index(change.status), change.phase != "prefill",
                                                 *(-amount for amount in _size(change))))


def _size(change: Change) -> tuple[float, float]:
    sides = [side for side in (change.before, change.after) if side]
    return max(side.flops for side in sides), max(side.bytes for side in sides)


def _amounts(graph: OpGraph, key: Key) -> dict[tuple[PhaseName, str, str], Amount]:
    rows, prefixes = [item for phase in graph.phases.values() for item in items(graph, phase.name)], _prefixes(graph)
    return {name: _amount(group) for name, group in _grouped(rows, lambda item: key(item, prefixes)).items()}


def _amount(rows: Iterable[Item]) -> Amount:
    together = sorted(rows, key=lambda item: item.detail)
    axes = {item.detail: item.axes for item in together}
    return Amount(count=sum(item.count for item in together), flops=sum(item.flops for item in together),
                  bytes=sum(item.bytes for item in together), details=tuple(axes),
                  axes=tuple(each for each in axes.values() if each))


def _grouped(rows: Iterable[Item], key: Callable[[Item], tuple[PhaseName, str, str]]
             ) -> dict[tuple[PhaseName, str, str], list[Item]]:
    groups: dict[tuple[PhaseName, str, str], list[Item]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
