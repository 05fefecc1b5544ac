"""A map of names that nobody wrote: equal paths, other beginnings, wrappers, fused modules, and what is left by order.

Names are compared without the numbers in them, so that a list of layers counts as one. Nothing here knows a model: a
name is a path, a tensor has a width, and modules run in an order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import prod
from typing import NamedTuple

from dayzero.runtime.golden import Item
from dayzero.schema.comparison import NamePair
from dayzero.stages.check.compare.places import Places, numbers, order_of, template

from .names import Shape

Shapes = dict[str, Shape]
_LEVELS, _BEGINNINGS = 6, 16
"""Rules that are used, and beginnings that are tried, at most."""


def shapes_of(places: Places) -> Shapes:
    """{name without numbers: Shape} of a dump."""
    found: Shapes = {}
    for address, items in places.items():
        name, item = template(address.name), items[0]
        tensor = frozenset([(address.what, address.slot, _width(item))])
        number = frozenset([numbers(address.name)])
        if name in found:
            old = found[name]
            found[name] = Shape(old.tensors | tensor, old.kind, min(old.order, order_of(items)), old.numbers | number)
        else:
            found[name] = Shape(tensor, item.entry.kind, order_of(items), number)
    return found


def derive(a: Shapes, b: Shapes) -> tuple[NamePair, ...]:
    """Pairs of names, those of `b` against those of `a`, in the order in which `b` runs. A name is in one pair at most.
    """
    pairs = {name: NamePair(a=(name,), b=(name,), how="the same path") for name in b if name in a}
    _fused(a, b, pairs)
    _rewritten(a, b, pairs)
    _fused(a, b, pairs)
    _by_order(a, b, pairs)
    return tuple(sorted(dict.fromkeys(pairs.values()), key=lambda pair: b[pair.b[0]].order))


def _rewritten(a: Shapes, b: Shapes, pairs: dict[str, NamePair]) -> None:
    """Names that are equal once wrappers are taken out and a beginning is replaced: the rule that pairs most names is
    taken first, until none pairs any."""
    for _ in range(_LEVELS):
        theirs, ours = {name: name for name in _free(a, pairs)}, {name: name for name in _free(b, pairs, ours=True)}
        rules = [*(("", rule) for rule in _wrappers(ours, theirs)), *(("", rule) for rule in _beginnings(ours, theirs)),
                 *(("the reference's ", rule) for rule in _wrappers(theirs, ours))]
        found = [(whose + rule.words, _matches(theirs, ours, rule, whose)) for whose, rule in rules]
        words, best = max(found, key=lambda each: len(each[1]), default=("", {}))
        if not best:
            return
        pairs |= {name: NamePair(a=(other,), b=(name,), how=words) for name, other in best.items()}


class Rule(NamedTuple):
    """A way to rewrite a name."""

    words: str
    apply: Callable[[str], str]


def _matches(theirs: Iterable[str], ours: Iterable[str], rule: Rule, whose: str) -> dict[str, str]:
    """{candidate's name: reference's} that the rule makes equal, each name once."""
    if whose:
        made = {rule.apply(name): name for name in theirs}
        return {name: made[name] for name in ours if name in made}
    goals = set(theirs)
    back = {goal: name for name in ours if (goal := rule.apply(name)) in goals}
    return {name: goal for goal, name in back.items()}


def _wrappers(names: Iterable[str], goals: Iterable[str]) -> list[Rule]:
    """Leaving out parts of the paths that the other side does not have at all: each of them, and all."""
    known = {part for goal in goals for part in goal.split(".")}
    odd = sorted({part for name in names for part in name.split(".") if part not in known})
    sets = [frozenset([part]) for part in odd] + ([frozenset(odd)] if len(odd) > 1 else [])
    return [Rule(f"left out {', '.join(sorted(gone))}", partial(_without, gone)) for gone in sets if "*" not in gone]


def _without(gone: frozenset[str], name: str) -> str:
    return ".".join(each for each in name.split(".") if each not in gone)


def _beginnings(names: Iterable[str], goals: Iterable[str]) -> list[Rule]:
    """Replacing what two names have before the longest end that they share."""
    ends: dict[str, list[str]] = {}
    for goal in goals:
        ends.setdefault(goal.rpartition(".")[2], []).append(goal)
    votes: Counter[tuple[str, str]] = Counter()
    for name in names:
        votes.update(_before(name, goal) for goal in ends.get(name.rpartition(".")[2], ()))
    return [Rule(f"{old or 'nothing'} in front becomes {new or 'nothing'}", partial(_replaced, old, new))
            for (old, new), _ in votes.most_common(_BEGINNINGS) if old.count("*") == new.count("*")]


def _replaced(old: str, new: str, name: str) -> str:
    return new + name[len(old):] if name.startswith(old) else ""


def _before(name: str, goal: str) -> tuple[str, str]:
    """What each has, dot included, before the longest common end in whole parts."""
    one, other = name.split("."), goal.split(".")
    same = 0
    while same < min(len(one), len(other)) and one[-1 - same] == other[-1 - same]:
        same += 1
    return tuple("".join(f"{part}." for part in parts[: len(parts) - same])  # type: ignore[return-value]
                 for parts in (one, other))


def _free(shapes: Shapes, pairs: Mapping[str, NamePair], *, ours: bool = False) -> list[str]:
    """Names in no pair, in the order of execution."""
    taken = {name for pair in pairs.values() for name in (pair.b if ours else pair.a)}
    return sorted((name for name in shapes if name not in taken), key=lambda name: shapes[name].order)


def _fused(a: Shapes, b: Shapes, pairs: dict[str, NamePair]) -> None:
    """One module against several of the same parent that follow each other and have its width together."""
    parents = {name: pair.a[0] for name, pair in pairs.items() if len(pair.a) == 1}
    back = {pair.a[0]: name for name, pair in pairs.items() if len(pair.a) == 1}
    for name in _free(b, pairs, ours=True):
        parent = name.rpartition(".")[0]
        home = parents.get(parent, parent if parent in a else None)
        if home is not None and (parts := _parts(b[name], _children(a, home, _free(a, pairs)), a)):
            pairs[name] = NamePair(a=parts, b=(name,), how="one module for several, by their widths", order=())
    for name in _free(a, pairs):
        parent = name.rpartition(".")[0]
        home = back.get(parent, parent if parent in b else None)
        if home is not None and (parts := _parts(a[name], _children(b, home, _free(b, pairs, ours=True)), b)):
            pair = NamePair(a=(name,), b=parts, how="several modules for one, by their widths", order=())
            pairs |= dict.fromkeys(parts, pair)


def _children(shapes: Shapes, parent: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.rpartition(".")[0] == parent and _output(shapes[name])]


def _output(shape: Shape) -> int:
    return next((width for what, slot, width in sorted(shape.tensors) if what == "output"), 0)


def _input(shape: Shape) -> int:
    return next((width for what, slot, width in sorted(shape.tensors) if what == "input"), 0)


def _parts(whole: Shape, names: list[str], shapes: Shapes) -> tuple[str, ...]:
    """The first run of at least two whose outputs are as wide as the whole's together, and that take the same."""
    for first in range(len(names)):
        width = 0
        for end in range(first, len(names)):
            if _input(shapes[names[end]]) != _input(whole) or shapes[names[end]].numbers != whole.numbers:
                break
            width += _output(shapes[names[end]])
            if width >= _output(whole):
                if width == _output(whole) and end > first:
                    return tuple(names[first : end + 1])
                break
    return ()


def _by_order(a: Shapes, b: Shapes, pairs: dict[str, NamePair]) -> None:
    """What is left: the longest rows of names that have the same tensors, numbers and kind, in the order of execution.
    """
    left = [name for name in _free(a, pairs) if name and _alike(a[name])]
    right = [name for name in _free(b, pairs, ours=True) if name and _alike(b[name])]
    longest = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in range(len(left) - 1, -1, -1):
        for j in range(len(right) - 1, -1, -1):
            match = _alike(a[left[i]]) == _alike(b[right[j]])
            longest[i][j] = max(longest[i + 1][j], longest[i][j + 1], longest[i + 1][j + 1] + 1 if match else 0)
    i = j = 0
    while i < len(left) and j < len(right):
        if _alike(a[left[i]]) == _alike(b[right[j]]) and longest[i][j] == longest[i + 1][j + 1] + 1:
            pairs[right[j]] = NamePair(a=(left[i],), b=(right[j],), how="by shapes and the order of execution")
            i, j = i + 1, j + 1
        elif longest[i + 1][j] >= longest[i][j + 1]:
            i += 1
        else:
            j += 1


def _alike(shape: Shape) -> tuple[object, ...]:
    """What two names must share to be paired by their order; empty for one without an output."""
    tensors = {(what, width) for what, _, width in shape.tensors if what in ("output", "parameter", "gradient")}
    return (frozenset(tensors), shape.kind, shape.numbers) if tensors else ()


def _width(item: Item) -> int:
    """Of the whole tensor: of all axes but the tokens', else of the last."""
    shape = list(item.entry.shape)
    for held in item.entry.held:
        shape[held.axis] = held.size
    by_token = bool(item.entry.axes) and item.entry.axes[0] == "token"
    return prod(shape[1:]) if by_token else prod(shape[-1:])


