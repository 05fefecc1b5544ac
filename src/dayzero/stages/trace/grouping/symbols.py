"""Operations that hold for any workload: the groups of several runs, aligned, with expressions for their axes.

Groups of two runs are the same when they have the same place in the same layer. Equal operations of layers that are
alike become one. No torch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dayzero.ops import CHUNK, OPERATORS
from dayzero.schema import ModelSpec, Operation
from dayzero.schema.graph import PhaseName
from dayzero.stages.trace.capture.captured import Captured

from . import Axis, Group, Grouped, lengths
from .group import Terms, value

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_LEAST, _BATCHES = (5, 7), (2, 3)
_CACHED, _BEYOND = 6, 11
"""More tokens in the cache than a prefill has new ones; tokens beyond the largest bound."""
_FARTHEST = 1 << 17
"""Tokens of the longest run: a bound beyond is not looked for."""
MEANT = {"sequences": ("batch",), "tokens": ("tokens", "batch * tokens"), "keys": ("context + tokens",)}
"""What axes of these names mostly mean."""
Place = tuple[str, int, str, str, tuple[str, ...], int]
"""Module's pattern, layer, operator, variant, functions that it begins in, and which of several such."""


class Workload(NamedTuple):
    """The sizes of one run."""

    batch: int
    """Sequences."""
    tokens: int
    """New tokens of each."""
    context: int
    """Tokens of each in the cache."""


def probes(spec: ModelSpec) -> dict[PhaseName, tuple[Workload, ...]]:
    """The runs of each phase from which expressions are found: two batches by two lengths, of which a model that merges
    tokens in its cache makes some entries; and one beyond all bounds that the model states."""
    merged = _merged_tokens(spec)
    bound = max((each for each in _limits(spec) if each < _FARTHEST), default=0)
    far = -(-max(bound + _BEYOND, merged * (_LEAST[1] + _BEYOND)) // merged) * merged
    runs = [(batch, merged * size) for batch in _BATCHES for size in _LEAST] + ([(_BATCHES[0], far)] if bound else [])
    return {
        "prefill": tuple(Workload(batch, tokens, 0) for batch, tokens in runs),
        "decode": tuple(Workload(batch, 1, tokens + _CACHED) for batch, tokens in runs),
    }


def _merged_tokens(spec: ModelSpec) -> int:
    return max((attention.merged for attention in spec.attentions.values()), default=1)


def _limits(spec: ModelSpec) -> Iterator[int]:
    """Tokens beyond which an attention does not see all of them."""
    for attention in spec.attentions.values():
        yield from (size for size in (attention.window, attention.index_top_k * attention.merged) if size)


def operations(requested: Sequence[Grouped], tried: Sequence[Grouped], spec: ModelSpec,
               constants: Iterable[int] = ()) -> tuple[Operation, ...]:
    """The operations of the requested runs, one for each phase, in their order. `tried`: the groups of `probes`;
    `constants`: whole numbers of the config, which may bound or round a length. An axis that cannot be explained keeps
    its number, and its operation is not exact."""
    known = tuple(sorted({each for each in (*constants, *_spec_constants(spec), CHUNK) if each > 1}))
    ways = [{id(run): _places(run, step) for run in (*requested, *tried)} for step in (1, -1)]
    found: dict[tuple[object, ...], Operation] = {}
    for run in requested:
        sides = _sides(run, requested, tried, spec)
        backwards = {id(group): place for place, group in _located(run, -1)}
        for place, group in _located(run, 1):
            axes, exact = _numbers(group, run.captured, spec)
            for at, places in zip((place, backwards[id(group)]), ways, strict=True):
                aligned = [[(each.captured, places[id(each)][at]) for each in side if at in places[id(each)]]
                           for side in sides]
                if not exact and len(aligned[0]) == len(sides[0]) and sides[0]:
                    axes, exact = _axes(group, aligned, spec, known)
                    exact = exact and len(aligned[3]) == len(sides[3])
            operation = _operation(group, run.captured, axes, exact)
            key = (operation.phase, operation.op, operation.variant, operation.module, operation.dtype,
                   tuple(operation.axes.items()), exact)
            found[key] = _merged(found[key], operation) if key in found else operation
    return tuple(found.values())


def _sides(run: Grouped, requested: Sequence[Grouped], tried: Sequence[Grouped], spec: ModelSpec
           ) -> list[list[Grouped]]:
    """The runs beside it: small ones of its phase and of the other, those that were asked for with itself first, far
    ones of its phase and of the other."""
    longest = _merged_tokens(spec) * _LEAST[1] + _CACHED
    sides: list[list[Grouped]] = [[], [], [run, *(each for each in requested if each is not run)], [], []]
    for each in tried:
        far = 3 if max(each.captured.tokens, each.captured.context) > longest else 0
        sides[far + (each.captured.phase != run.captured.phase)].append(each)
    return sides


def pattern(module: str) -> str:
    """A module's path with `{L}` for its first number and `*` for the others."""
    return _NUMBER.sub("*", _NUMBER.sub("{L}", module, count=1))


def _located(run: Grouped, step: int) -> Iterator[tuple[Place, Group]]:
    """Each group with its place in the layer that it ran in. Several such are counted from the first, or with a step
    of -1 from the last: some runs lack one in between."""
    numbers: Counter[tuple[str, int, str, str, tuple[str, ...]]] = Counter()
    for group in run.groups[::step]:
        match = _NUMBER.search(group.module)
        named = group.op not in ("copy", "elementwise")  # what they are says less than where they begin
        functions = () if named else next((call.functions for call in group.calls if call.kind != "view"), ())
        key = (pattern(group.module), int(match[0]) if match else -1, group.op, group.variant, functions)
        yield (*key, numbers[key]), group
        numbers[key] += 1


def _places(run: Grouped, step: int) -> dict[Place, Group]:
    """Groups by place, in every layer that has them."""
    found: dict[Place, Group] = {}
    for place, group in _located(run, step):
        for layer in run.captured.copies(group.module):
            found.setdefault((place[0], layer, *place[2:]), group)
    return found


def _numbers(group: Group, run: Captured, spec: ModelSpec) -> tuple[dict[str, float | str], bool]:
    """Axes of an operation that no small run has: as traced, or what their names mean if that gives the number."""
    if run.phase == "towers":  # no workload changes the input
        return {name: value(axis) for name, axis in group.axes.items()}, True
    axes: dict[str, float | str] = {}
    for name, axis in group.axes.items():
        number = value(axis)
        sample = lengths.Sample(run.batch, run.tokens, run.context, int(number))
        meant = MEANT.get(name, ()) + _hints(group, name, spec)
        axes[name] = next((hint for hint in meant if isinstance(axis, tuple) and lengths.holds(hint, [sample])), number)
    return axes, not any(isinstance(axis, tuple) for axis in group.axes.values())


def _axes(group: Group, aligned: Sequence[Sequence[tuple[Captured, Group]]], spec: ModelSpec, known: tuple[int, ...]
          ) -> tuple[dict[str, float | str], bool]:
    """Every axis as a number or an expression, and whether all are explained."""
    axes: dict[str, float | str] = {}
    exact = True
    for name, axis in group.axes.items():
        if not isinstance(axis, tuple):
            same = {other.axes.get(name) for side in aligned[:1] for _, other in side}
            axes[name], exact = axis, exact and same <= {axis}
            continue
        found = _length(name, axis, aligned, _hints(group, name, spec), known)
        axes[name] = value(axis) if found is None else found
        exact = exact and found is not None
    return axes, exact


def _hints(group: Group, name: str, spec: ModelSpec) -> tuple[str, ...]:
    """What a length means where its name says it: the context, the keys of a window, the choice of an indexer."""
    if name == "context":
        return ("context",)
    if (name == "window" and group.variant == "sparse") or (name == "top_k" and group.op != "experts"):
        chosen = {(attention.merged, attention.index_top_k) for attention in spec.attentions.values()
                  if attention.index_top_k}
        return tuple(f"min(context + tokens, {most})" if merged == 1 else f"min((context + tokens) // {merged}, {most})"
                     for merged, most in sorted(chosen))
    if name == "keys" and (group.op, group.variant) in (("attention", "sliding"), ("mask", "")):
        windows = sorted({attention.window for attention in spec.attentions.values() if attention.window})
        return tuple(f"min(context, {kept}) + tokens" for window in windows for kept in (window - 1, window))
    return ()


def _length(name: str, axis: Terms, aligned: Sequence[Sequence[tuple[Captured, Group]]], hints: tuple[str, ...],
            known: tuple[int, ...]) -> float | str | None:
    """A sum of products of dimensions, each explained by itself; when the runs do not have the same ones, the length
    as a whole. None: it cannot be explained."""
    shapes = [[(run, _terms(group.axes.get(name))) for run, group in side] for side in aligned]
    form = [len(term) for term in axis]
    shapes[1] = shapes[1] if all([len(term) for term in terms] == form for _, terms in shapes[1]) else []
    shapes[2] = [each for each in shapes[2] if [len(term) for term in each[1]] == form]
    shapes[4] = [each for each in shapes[4] if shapes[1] and [len(term) for term in each[1]] == form]
    if any([len(term) for term in terms] != form for _, terms in (*shapes[0], *shapes[3])):
        whole = (shapes[0], shapes[1][:0], shapes[2][:1], shapes[3], shapes[4][:0])
        shapes = [[(run, ((_size(terms),),)) for run, terms in side] for side in whole]
        axis = ((_size(axis),),)
    total: lengths.Polynomial = {}
    texts: list[str] = []
    for at, term in enumerate(axis):
        product, factors = {(0, 0, 0): 1}, []
        for dim in range(len(term)):
            samples = (tuple(lengths.Sample(run.batch, run.tokens, run.context, terms[at][dim]) for run, terms in side)
                       for side in shapes)
            found = lengths.find(lengths.Seen(*samples), hints, known)
            if found is None:
                return None
            product = lengths.multiplied(product, found.polynomial)
            factors += [found.text] if found.text else []
        if factors:
            texts.append(_times(product, factors))
        else:
            total = lengths.added(total, product)
    return _sum(total, texts)


def _times(product: lengths.Polynomial, factors: Sequence[str]) -> str:
    first = lengths.text(product)
    if first == "1" and len(factors) == 1:
        return factors[0]
    return " * ".join(f"({each})" if " " in each else each for each in (*factors, *([] if first == "1" else [first])))


def _sum(total: lengths.Polynomial, texts: Sequence[str]) -> float | str:
    if not texts:
        return total.get((0, 0, 0), 0) if set(total) <= {(0, 0, 0)} else lengths.text(total)
    return " + ".join([*texts, *([lengths.text(total)] if total else [])])


def _terms(axis: Axis | None) -> Terms:
    return axis if isinstance(axis, tuple) else ()


def _size(terms: Terms) -> int:
    return int(value(terms))


def _operation(group: Group, run: Captured, axes: Mapping[str, float | str], exact: bool) -> Operation:
    """The operation of all layers that make these calls."""
    copies = run.copies(group.module)
    times = Counter({place: sum(run.copies(place).values()) for place in {call.place for call in group.calls}})
    definition = OPERATORS.get(group.op)
    numbers = {name: value(axis) for name, axis in group.axes.items()}
    count = sum(copies.values())
    calls: Counter[str] = Counter()
    for call in group.calls:
        calls[call.op] += times[call.place]
    return Operation(
        op=group.op, variant=group.variant, module=pattern(group.module), phase=run.phase, count=count,
        layers=() if run.phase == "towers" else tuple(sorted(layer for layer in copies if layer >= 0)),
        axes=dict(axes), dtype=group.dtype,
        flops=round(count * definition.flops(numbers)), bytes=round(count * definition.bytes(numbers)),
        counted_flops=sum(call.flops * times[call.place] for call in group.calls),
        counted_bytes=sum(call.bytes * times[call.place] for call in group.calls), calls=dict(calls), exact=exact)


def _merged(first: Operation, second: Operation) -> Operation:
    """Both as one, which they are but for the layers."""
    return Operation(
        op=first.op, variant=first.variant, module=first.module, phase=first.phase, count=first.count + second.count,
        layers=tuple(sorted({*first.layers, *second.layers})), axes=first.axes, dtype=first.dtype,
        flops=first.flops + second.flops, bytes=first.bytes + second.bytes,
        counted_flops=first.counted_flops + second.counted_flops,
        counted_bytes=first.counted_bytes + second.counted_bytes,
        calls=dict(Counter(first.calls) + Counter(second.calls)), exact=first.exact)


def _spec_constants(spec: ModelSpec) -> Iterator[int]:
    """Numbers of the model that may bound or round a length."""
    for attention in spec.attentions.values():
        yield from (attention.window or 0, attention.merged, attention.conv_kernel or 0)
