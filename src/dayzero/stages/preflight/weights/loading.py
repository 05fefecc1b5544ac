"""What becomes of each tensor in the engine's loader, and which parameters the engine declares for them.

`declares` may be a partial list: it is checked for the names given and for the modules that they belong to.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from dayzero.placement.split import UNUSED, is_mtp
from dayzero.schema import WeightFamily
from dayzero.schema.target import Declared
from dayzero.stages.preflight.rule import Case

from .loader import Arrival, any_hit, anywhere, arrivals, at_end, filter_text, hit, renamed

_NUMBERS = re.compile(r"(?<![^.])(?:\d+|\{\w+\})(?![^.])")
_FORMS = ("weight", "bias")
MANY = 8
"""More tensors than this are one finding, about the pattern."""


@dataclass
class Loading:
    """What becomes of all tensors in the engine's loader."""

    case: Case
    arriving: list[Arrival]
    """Renamed, not dropped by a filter."""
    filtered: list[tuple[Arrival, str]]
    """Dropped, and the filter that did it."""
    unknown: list[Arrival] = field(default_factory=list)
    """Of those that arrive, the ones that the engine's list of expected names does not have."""

    @cached_property
    def families(self) -> dict[str, list[WeightFamily]]:
        """By pattern."""
        found: dict[str, list[WeightFamily]] = defaultdict(list)
        for family in self.case.model.families:
            found[family.pattern].append(family)
        return found

    def family(self, arrival: Arrival) -> WeightFamily | None:
        """The family of the first of its tensors."""
        layer = int(arrival.group.layer.values[arrival.rows[0]])
        alike = [family for family in self.families[arrival.group.pattern] if family.shape == arrival.group.shape]
        return next((family for family in alike if layer in family.layers), alike[0] if alike else None)

    def is_idle(self, family: WeightFamily | None) -> bool:
        """Whether the model is whole without it: an unused head, a table that is computed anyway, draft layers that
        are not asked for."""
        if family is None or family.role.split(".")[0] in (UNUSED, "buffer"):
            return True
        return is_mtp(family, self.case.model) and self.case.target.engine.facts.speculative != "mtp"

    def parts(self, arrival: Arrival) -> Iterator[Arrival]:
        """Its decoder layers and those after them."""
        after = arrival.group.layer.values[arrival.rows] >= len(self.case.model.layers)
        yield from (arrival.where(mask) for mask in (~after, after) if mask.any())


@lru_cache(maxsize=1)  # several rules ask for that of the same case
def loading(case: Case) -> Loading:
    """Renames, filters and expected names applied to all tensors. Raises TargetError for what is not understood."""
    facts = case.target.engine.facts
    arriving = renamed(arrivals(case.release.tensors.groups), facts.renames or ())
    filtered: list[tuple[Arrival, str]] = []
    for entry in facts.filters or ():
        text, drops = filter_text(entry)
        kept = []
        for arrival in arriving:
            mask = hit(text, anywhere(text), arrival)
            gone = mask if drops else ~mask
            if gone.any():
                filtered.append((arrival.where(gone), text))
            if not gone.all():
                kept.append(arrival.where(~gone))
        arriving = kept
    done = Loading(case, arriving, filtered)
    if facts.expects and facts.on_unknown:
        done.unknown = [arrival.where(mask) for arrival in arriving
                        if _in_scope(facts.expects, arrival)
                        and (mask := ~any_hit(facts.expects, at_end, arrival)).any()]
    return done


def _in_scope(expects: list[str], arrival: Arrival) -> bool:
    """Whether the list of expected names says something about a tensor: it has a name within one of its modules."""
    within = {segment for text in expects for segment in _parents(text)}
    return not all(_parents(text) for text in expects) or bool(within.intersection(arrival.pattern.split(".")))


def _parents(text: str) -> list[str]:
    """Names of the modules that the named one is in; without numbers and stars."""
    segments = text.split(".")
    while len(segments) > 1 and segments[-1] in _FORMS:
        segments.pop()
    return [segment for segment in segments[:-1] if segment and not re.search(r"[{*\d]", segment)]


class Declarations:
    """The parameters that the engine declares, by name and by module."""

    def __init__(self, entries: list[Declared]) -> None:
        self.exact = {entry.name: entry for entry in entries if "{" not in entry.name and "*" not in entry.name}
        self.alike = [entry for entry in entries if entry.name not in self.exact]
        self.modules = {_module(entry.name) for entry in entries}
        self.stems = {entry.name.removesuffix(".weight") for entry in entries}
        self._keys = {_key(module) for module in self.modules}
        self._inner = {_key(stem) for stem in self.stems}

    def module_known(self, pattern: str) -> bool:
        """Whether tensors of that pattern may be in a module of which something is declared."""
        return bool(self._keys.intersection(_key(part) for part in _ancestors(pattern)))

    def entry(self, name: str, arrival: Arrival) -> Declared | None:
        """What is declared under a name."""
        if name in self.exact:
            return self.exact[name]
        return next((entry for entry in self.alike if hit(entry.name, _whole, arrival).any()), None)


def _whole(made: str) -> str:
    return f"^{made}$"


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _key(name: str) -> str:
    """A name in which all numbers are alike."""
    return _NUMBERS.sub("#", name)


def _ancestors(name: str) -> Iterator[str]:
    """The modules that a tensor is in, innermost first."""
    while name := _module(name):
        yield name


def undeclared(found: Loading) -> Iterator[Arrival]:
    """Tensors in a module of which the engine declares parameters, but not one for them."""
    entries = found.case.target.engine.facts.declares
    if not entries:
        return
    declared = Declarations(entries)
    outer = {_module(module) for module in {_module(name) for name in declared.exact}}
    outer |= {module for arrival in found.arriving for module in list(_ancestors(arrival.pattern))[1:]}
    containers = {_key(module) for module in outer}
    for arrival in found.arriving:
        if not declared.module_known(arrival.pattern):
            continue
        rows = [row for row in arrival.rows if _is_foreign(arrival.name(int(row)), arrival, declared, containers)]
        family = found.family(arrival) if rows else None
        if rows and not (family and family.role == "buffer"):
            yield Arrival(arrival.group, np.array(rows), arrival.pattern)


def absent(found: Loading) -> Iterator[Declared]:
    """Parameters that the engine declares by a full name and that no tensor fills: neither one of that name, in the
    files or after the renames, nor those of which it is put together."""
    facts = found.case.target.engine.facts
    declared = Declarations(facts.declares or [])
    members = set[str]().union(*(facts.fuses or ()))
    there, modules = set[str](), set[str]()
    for arrival in (*arrivals(found.case.release.tensors.groups), *found.arriving):
        modules.update(_key(part) for part in _ancestors(arrival.pattern))
        if declared.module_known(arrival.pattern) or members.intersection(arrival.pattern.split(".")):
            there.update(arrival.name(int(row)) for row in arrival.rows)
    for name, entry in declared.exact.items():
        module, _, form = name.rpartition(".")
        parts = {f"{_module(module)}.{member}.{form}".lstrip(".") for member in members}
        stacked = any(_key(f"{outer}.0") in modules for outer in (module, _module(module)) if outer)
        if name not in there and not stacked and not parts & there:
            yield entry


def _is_foreign(name: str, arrival: Arrival, declared: Declarations, containers: set[str]) -> bool:
    """Whether a tensor belongs to a declared module and has no parameter there. Of a module that holds other modules,
    a partial list says nothing but about what a declared parameter's name goes on with, as that of a scale does."""
    if declared.entry(name, arrival) is not None:
        return False
    if any(name.startswith((f"{stem}_", f"{stem}.")) for stem in declared.stems):
        return True
    module = _module(name)
    return _key(module) not in containers and (
        module in declared.modules or any(hit(entry.name, lambda made: f"^{_module_form(made)}", arrival).any()
                                          for entry in declared.alike))


def _module_form(made: str) -> str:
    return made.rpartition(r"\.")[0] + r"\.[^.]*$"
