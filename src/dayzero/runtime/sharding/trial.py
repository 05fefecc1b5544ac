"""Which weights of a layer can be cut, found by cutting them.

One matrix after the other is cut along one of its dimensions, and the layer's own code runs on it, on one layer of each
kind and without another rank. What meets parts gets cut by that too: the matrix that sums them up, gates, norms,
convolutions, sinks of each head. A cut is of use when nothing in the layer had to be put together and what the layer
gives is whole again. So heads, latent projections and fused weights decide it, not names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dayzero.runtime.building.zeros import zeros
from dayzero.runtime.library import LIBRARY_ERRORS

from .groups import Imagined
from .observe import pattern
from .shapes import Segments, even
from .sharded import Sharded, cut, is_sharded

aten = torch.ops.aten


@dataclass(frozen=True)
class Along:
    """How a parameter is cut."""

    dim: int
    """Along which dimension of the model's parameter."""
    segments: Segments
    """Each rank has an equal part of each of them."""


Cuts = dict[str, Along]
"""By the pattern of a parameter's name."""


@dataclass
class Subject:
    """Something that is run: a layer, or a module of experts."""

    module: nn.Module
    """With parameters that have no data."""
    run: Callable[[], Any]
    """Calls it with what it is called with in the model."""
    ranks: Callable[[str], int]
    """Pattern of a parameter -> ranks that share it; 1: it stays whole."""
    dims: Callable[[str, nn.Parameter], tuple[int, ...]]
    """Pattern of a parameter and one of them -> dimensions along which it may be cut first."""
    scope: Callable[[str], str] = lambda _: ""
    """Pattern of a parameter -> parameters that are cut together have the same (routed experts have one of their
    own, for their ranks may be others)."""


@dataclass
class Seen:
    """What comes of a trial."""

    touched: Cuts
    """What had to be cut too."""
    fault: str
    """Why the cut is of no use; empty: it is."""
    sums: int = 0
    """Sums over ranks."""
    borders: dict[int, set[int]] = field(default_factory=dict)
    """Dimensions of that size are cut by the code there."""


@dataclass
class Slot:
    """Where a parameter is."""

    owner: nn.Module
    leaf: str
    value: nn.Parameter


def slots(module: nn.Module) -> dict[str, list[Slot]]:
    """Its parameters by pattern: those of the experts of a list together."""
    found: dict[str, list[Slot]] = {}
    for prefix, owner in module.named_modules():
        for leaf, value in owner._parameters.items():
            if value is not None:
                found.setdefault(pattern(f"{prefix}.{leaf}" if prefix else leaf), []).append(Slot(owner, leaf, value))
    return found


def cuts(subject: Subject) -> tuple[Cuts, dict[str, str]]:
    """({pattern of a parameter: how it is cut}, {pattern: why it stays whole})."""
    with torch.no_grad(), zeros(subject.module), _Cheap():  # type: ignore[no-untyped-call]
        found = slots(subject.module)
        candidates, why = _candidates(subject, found)
        chosen: list[Cuts] = []
        # What saves most weights for each sum over ranks that it takes comes first.
        for one, _ in sorted(candidates, key=lambda each: -_size(each[0], found) / max(1, each[1])):
            taken = {name: along for each in chosen for name, along in each.items()}
            if all(taken.get(name, along) == along for name, along in one.items()):
                chosen.append(one)
        made = _extended(subject, found, _agreed(subject, found, chosen))
    return made, {name: why.get(name, "it meets no parts of another one") for name in found if name not in made}


def run_whole(subject: Subject) -> None:
    """Once, with nothing cut. Raises what its code raises."""
    with torch.no_grad(), zeros(subject.module), _Cheap():  # type: ignore[no-untyped-call]
        subject.run()


def _candidates(subject: Subject, found: dict[str, list[Slot]]) -> tuple[list[tuple[Cuts, int]], dict[str, str]]:
    """([(what is cut together, sums over ranks that it takes)], {pattern: why it stays whole})"""
    made: list[tuple[Cuts, int]] = []
    why: dict[str, str] = {}
    for name, own in found.items():
        ranks = subject.ranks(name)
        for dim in subject.dims(name, own[0].value) if ranks > 1 else ():
            size = own[0].value.shape[dim]
            if size % ranks:
                why.setdefault(name, f"{size} is not a multiple of {ranks}")
                continue
            one, sums, fault = _candidate(subject, found, name, dim, size)
            if one:
                made.append((one, sums))
                break
            why.setdefault(name, fault)
    return made, why


def _candidate(subject: Subject, found: dict[str, list[Slot]], name: str, dim: int, size: int) -> tuple[Cuts, int, str]:
    """({what is cut}, sums over ranks that it takes, why it is of no use): as one piece, and if the code takes it
    apart, then piece by piece."""
    ranks, segments, fault = subject.ranks(name), (size,), ""
    for _ in range(3):
        seen = tried(subject, found, {name: Along(dim, segments)})
        matrices = [each for each in seen.touched if each != name and found[each][0].value.dim() > 1]
        fault = seen.fault or ("" if matrices else "no other one sums up its parts")
        if not fault and any(subject.scope(each) != subject.scope(name) for each in matrices):
            fault = "its parts would go from routed experts to others"
        if not fault:
            return {name: Along(dim, segments), **seen.touched}, seen.sums, ""
        edges = sorted({0, size, *seen.borders.get(size, ())})
        new = tuple(last - first for first, last in pairwise(edges))
        if fault != seen.fault or new == segments or not even(new, ranks):
            break
        segments = new
    return {}, 0, fault


def _size(one: Cuts, found: dict[str, list[Slot]]) -> int:
    return sum(slot.value.numel() for name in one for slot in found[name])


def _agreed(subject: Subject, found: dict[str, list[Slot]], chosen: list[Cuts]) -> Cuts:
    """The cuts that are of use together: as long as they are not, the one that saves least is given up."""
    while chosen:
        together = {name: along for one in chosen for name, along in one.items()}
        seen = tried(subject, found, together)
        if not seen.fault:
            return together | {name: along for name, along in seen.touched.items() if name not in together}
        chosen = chosen[:-1]
    return {}


def _extended(subject: Subject, found: dict[str, list[Slot]], chosen: Cuts) -> Cuts:
    """With all that can be cut once the rest is, without another sum over ranks: what one part was added to before, or
    written into, may be in parts now."""
    sums = tried(subject, found, chosen).sums if chosen else 0
    rest = [name for name in found if name not in chosen]  # in one order on all ranks, which a set has not
    for name in sorted(rest, key=lambda each: -found[each][0].value.numel()) if chosen else ():
        size, ranks = found[name][0].value.shape[0] if found[name][0].value.dim() else 1, subject.ranks(name)
        if ranks < 2 or size % ranks or subject.scope(name) not in map(subject.scope, chosen):
            continue
        seen = tried(subject, found, {**chosen, name: Along(0, (size,))})
        if not seen.fault and seen.sums <= sums:
            chosen = {**chosen, name: Along(0, (size,)), **seen.touched}
    return chosen


def tried(subject: Subject, found: dict[str, list[Slot]], chosen: Cuts) -> Seen:
    """Run it with these cuts."""
    groups: dict[int, Imagined] = {}
    origin = {slot.value.untyped_storage().data_ptr(): (name, slot.value) for name, own in found.items()
              for slot in own}
    with _cut(subject, found, chosen, groups):
        try:
            made = subject.run()
        except LIBRARY_ERRORS as error:
            return Seen({}, f"the code fails on parts: {type(error).__name__}: {str(error)[:120]}")
    touched: Cuts = {}
    for group in groups.values():
        for value, dim, segments in group.taken:
            name, along = _source(origin, value, dim, segments)
            if name and name not in chosen and (
                    touched.setdefault(name, along) != along or subject.ranks(name) != group.size):
                return Seen(touched, f"{name} meets parts that are cut in two ways")
    borders = {size: places for group in groups.values() for size, places in group.borders.items()}
    sums = sum(group.sent["all_reduce"] for group in groups.values())
    if operators := [name for group in groups.values() for name in group.whole]:
        return Seen(touched, f"{operators[0]} needs the whole", sums, borders)
    if any(group.sent["all_gather"] for group in groups.values()):
        return Seen(touched, "the parts are needed together between", sums, borders)
    if any(is_sharded(each) for each in tree_leaves(made)):
        return Seen(touched, "what comes out would be in parts", sums, borders)
    return Seen(touched, "", sums, borders)


def _source(origin: dict[int, tuple[str, nn.Parameter]], value: torch.Tensor, dim: int, segments: Segments
            ) -> tuple[str, Along]:
    """The parameter of which `value` is a view, and which of its dimensions is that one; no name: none."""
    name, parameter = origin.get(value.untyped_storage().data_ptr(), ("", None))
    if parameter is not None:
        for own in range(parameter.dim()):
            if parameter.shape[own] == value.shape[dim] and parameter.stride(own) == value.stride(dim):
                return name, Along(own, segments)
    return "", Along(0, ())


@contextmanager
def _cut(subject: Subject, found: dict[str, list[Slot]], chosen: Cuts, groups: dict[int, Imagined]) -> Iterator[None]:
    kept = []
    for name, along in chosen.items():
        ranks = subject.ranks(name)
        group = groups.setdefault(ranks, Imagined(ranks))
        for slot in found[name]:
            kept.append(slot)
            part = cut(slot.value.detach(), along.dim, along.segments, group)
            slot.owner._parameters[slot.leaf] = nn.Parameter(part, requires_grad=False)
    for group in groups.values():
        group.taken.clear()
    try:
        yield
    finally:
        for slot in kept:
            slot.owner._parameters[slot.leaf] = slot.value


class _Cheap(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Products of zeros are zeros: that is all of a large layer's time."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, Sharded) for each in types):
            return NotImplemented  # Sharded's own turn, which ends in plain tensors
        if func in _PRODUCTS:
            left, right = args[_PRODUCTS[func]], args[_PRODUCTS[func] + 1]
            return left.new_zeros((*left.shape[:-1], right.shape[-1]))
        return func(*args, **(kwargs or {}))


_PRODUCTS = {aten.mm.default: 0, aten.bmm.default: 0, aten.addmm.default: 1, aten.baddbmm.default: 1,
             aten._grouped_mm.default: 0}
