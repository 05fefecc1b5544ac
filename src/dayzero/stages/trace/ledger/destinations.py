"""The ledger of weights against the model that the library builds on the meta device, with its own rules for names:
renames, converters (experts that are stacked while loading), tied weights and names that it leaves out on purpose."""

from __future__ import annotations

import importlib.util
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from dayzero.data.vocabulary import vocabulary
from dayzero.errors import NotPossible
from dayzero.placement.split import TOWERS, UNUSED, is_mtp, is_tower
from dayzero.schema import Release, TensorGroup, WeightFamily
from dayzero.schema.coverage import Coverage, Destination, Doubled, Misshapen, Unfilled

if TYPE_CHECKING:
    import torch

    from dayzero.stages.trace.construct import Built

Shape = tuple[int, ...]
COMPANIONS = {"scale": "quantisation: goes with its weight", "global_scale": "quantisation: goes with its weight",
              "zero_point": "quantisation: goes with its weight", "buffer": "a table or a shape, no parameter"}
"""Forms of tensors that the unquantised model has no parameters for, and why that is right."""
UNPACKED = ("BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2")
"""dtypes in which a stored shape is that of the matrix."""


@dataclass
class Names:
    """How the library gets from a name in the files to parameters."""

    declared: dict[str, Shape]
    """Everything that is loaded: parameters and persistent buffers."""
    renamings: list[Any]
    converters: list[Any]
    prefix: str
    """Of the model inside the one with a head; names may have it or not."""
    state: dict[str, Any]
    rename: Callable[..., tuple[str, str | None]]
    """The library's own function."""

    def targets(self, name: str) -> tuple[list[str], bool]:
        """(parameters, whether they are put together from several tensors or are a part of one)."""
        new, source = self.rename(name, self.renamings, self.converters, self.prefix, self.state)
        if new not in self.declared and name in self.declared:
            return [name], False
        if source is None:
            return ([new] if new in self.declared else []), False
        converter = next(one for one in self.converters if source in one.source_patterns)
        first = converter.target_patterns[0]
        made = [new.replace(first, other) for other in converter.target_patterns]
        return [one for one in made if one in self.declared], True


@dataclass
class Ledger:
    """What is found while the tensors are gone through."""

    lines: dict[tuple[str, str, str], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """(pattern, parameter, reason) -> (layer, tensors)."""
    filled: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Values that reach a parameter."""
    misshapen: dict[tuple[str, Shape, Shape], set[int]] = field(default_factory=lambda: defaultdict(set))
    """(pattern, file, declared) -> layers."""
    whole: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Parameter -> names in the files that each stand for all of it."""


def coverage(release: Release) -> Coverage:
    """Where each tensor of the release goes, and which parameters stay empty. Nothing of the release's own code runs.

    Raises NotPossible without torch, without tensors, or without a class for the model.
    """
    need_libraries()
    if not release.tensors.count:
        raise NotPossible(f"{release.name} has no tensors", "give a release with its shards, or their headers")
    from dayzero.stages.trace import construct

    with construct.quiet():
        built = construct.build(release)
    return destinations(release, built)


def need_libraries() -> None:
    """Raises NotPossible without torch and transformers."""
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise NotPossible(f"{package} is not installed", "pip install 'dayzero[torch]'")


def destinations(release: Release, built: Built) -> Coverage:
    """The same for a model that has been built."""
    from dayzero.stages.trace import construct

    with construct.quiet():
        names = _names(built.model)
        ledger = _gone_through(release, names, built.model)
    return Coverage(
        source=built.source, parameters=len(names.declared), destinations=_destinations(ledger),
        unfilled=tuple(_unfilled(ledger, names.declared, built.model)),
        misshapen=tuple(Misshapen(pattern=pattern, file=file, declared=declared, layers=tuple(sorted(layers - {-1})))
                        for (pattern, file, declared), layers in ledger.misshapen.items()),
        doubled=_doubled(ledger))


def _names(model: torch.nn.Module) -> Names:
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    state = model.state_dict()
    mapping = get_model_conversion_mapping(model)
    return Names(declared={name: tuple(value.shape) for name, value in state.items()}, state=state,
                 rename=rename_source_key,
                 renamings=[one for one in mapping if isinstance(one, WeightRenaming)],
                 converters=[one for one in mapping if isinstance(one, WeightConverter)],
                 prefix=str(getattr(model, "base_model_prefix", "")))


def _gone_through(release: Release, names: Names, model: torch.nn.Module) -> Ledger:
    ledger, families = Ledger(), _families(release)
    left_out = [re.compile(one) for one in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    towers = {word for scope in TOWERS for word in vocabulary().scopes[scope]}
    has_towers = any(towers.intersection(name.split(".")) for name in names.declared)
    for group in release.tensors.groups:
        form, stem = _form(group.pattern)
        layers = group.layer.values
        for layer in np.unique(layers).tolist():
            rows = np.flatnonzero(layers == layer)
            family = _family(families[group.pattern], group, layer)
            targets, joined = _targets(names, group.name(int(rows[0])), form, stem, group, int(rows[0]))
            if targets and "{E}" in group.pattern and not joined:
                _each_expert(ledger, names, group, rows, targets[0], family)
                continue
            parameter = _pattern(targets[0], layer) if targets else ""
            reason = "" if targets else _reason(group.name(int(rows[0])), form, family, left_out, has_towers, release)
            ledger.lines[group.pattern, parameter, reason].append((layer, len(rows)))
            for target in targets:
                ledger.filled[target] += len(rows) * _values(group, family) / len(targets)
            if len(targets) == 1 and not joined and form in ("weight", "bias"):
                ledger.whole[targets[0]].append(group.name(int(rows[0])))
            if len(targets) == 1 and not joined:
                _compare(ledger, group, form, names.declared[targets[0]], layer)
    return ledger


def _targets(names: Names, name: str, form: str, stem: str, group: TensorGroup, row: int) -> tuple[list[str], bool]:
    """Parameters of a tensor; of packed values those of the matrix that they are."""
    targets, joined = names.targets(name)
    if targets or form in ("weight", "bias", *COMPANIONS):
        return targets, joined
    module = stem.replace("{L}", str(int(group.layer.values[row]))).replace("{E}", str(int(group.expert.values[row])))
    for other in (f"{module}.weight", module):
        targets, joined = names.targets(other)
        if targets:
            return targets, joined
    return [], False


def _each_expert(ledger: Ledger, names: Names, group: TensorGroup, rows: Any, first: str,
                 family: WeightFamily | None) -> None:
    """The library keeps one parameter for each expert."""
    layer, start = int(group.layer.values[rows[0]]), int(group.expert.values[rows[0]])
    form = _form(group.pattern)[0]
    for row in rows.tolist():
        target = first.replace(f".{start}.", f".{int(group.expert.values[row])}.") if layer != start else (
            names.targets(group.name(row))[0] or [""])[0]
        known = target in names.declared
        parameter = _pattern(target, layer).replace(f".{int(group.expert.values[row])}.", ".{E}.") if known else ""
        ledger.lines[group.pattern, parameter, ""].append((layer, 1))
        if known:
            ledger.filled[target] += _values(group, family)
            _compare(ledger, group, form, names.declared[target], layer)


def _compare(ledger: Ledger, group: TensorGroup, form: str, declared: Shape, layer: int) -> None:
    if form in ("weight", "bias") and group.dtype in UNPACKED and group.shape != declared:
        ledger.misshapen[group.pattern, group.shape, declared].add(layer)


def _reason(name: str, form: str, family: WeightFamily | None, left_out: list[re.Pattern[str]],
            has_towers: bool, release: Release) -> str:
    """Why it is right that a tensor has no parameter; empty: it is not."""
    if form in COMPANIONS:
        return COMPANIONS[form]
    if family is not None and is_mtp(family, release.model):
        return "prediction layer: the library's class has none"
    if family is not None and family.role.split(".")[0] == UNUSED:
        return "the model does not use it"
    if family is not None and is_tower(family) and not has_towers:
        return "tower: the class is the language model alone"
    if any(one.search(name) for one in left_out):
        return "the library leaves it out on purpose"
    return ""


def _families(release: Release) -> dict[str, list[WeightFamily]]:
    found: dict[str, list[WeightFamily]] = defaultdict(list)
    for family in release.model.families:
        found[family.pattern].append(family)
    return found


def _family(alike: list[WeightFamily], group: TensorGroup, layer: int) -> WeightFamily | None:
    same = [family for family in alike if family.shape == group.shape and family.dtype == group.dtype]
    return next((family for family in same if layer in family.layers), same[0] if same else None)


def _values(group: TensorGroup, family: WeightFamily | None) -> float:
    """Logical values of one tensor."""
    return family.parameters / family.count if family and family.parameters else prod(group.shape)


def _form(pattern: str) -> tuple[str, str]:
    for form in vocabulary().forms:
        match = re.search(f"(?:{form.end})$", pattern)
        if match and match.start() > 0:
            return form.form, pattern[:match.start()]
    return "weight", pattern


def _pattern(name: str, layer: int) -> str:
    return name.replace(f".{layer}.", ".{L}.", 1) if layer >= 0 else name


def _destinations(ledger: Ledger) -> tuple[Destination, ...]:
    return tuple(
        Destination(pattern=pattern, parameter=parameter, reason=reason, tensors=sum(count for _, count in places),
                    layers=tuple(sorted({layer for layer, _ in places if layer >= 0})))
        for (pattern, parameter, reason), places in sorted(ledger.lines.items()))


def _doubled(ledger: Ledger) -> tuple[Doubled, ...]:
    places: dict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(list)
    for parameter, names in ledger.whole.items():
        if len(names) > 1:
            number = re.search(r"\.(\d+)\.", parameter)
            layer = int(number[1]) if number else -1
            places[_pattern(parameter, layer), tuple(sorted(_pattern(name, layer) for name in names))].append(layer)
    return tuple(Doubled(parameter=parameter, patterns=patterns, layers=tuple(sorted(set(layers) - {-1})))
                 for (parameter, patterns), layers in sorted(places.items()))


def _unfilled(ledger: Ledger, declared: Mapping[str, Shape], model: torch.nn.Module) -> Iterator[Unfilled]:
    """Parameters that get too little, by pattern; a tied one has the values of the other."""
    tied: Mapping[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    optional = [re.compile(one) for one in getattr(model, "_keys_to_ignore_on_load_missing", None) or ()]
    empty: dict[str, list[tuple[int, float, int]]] = defaultdict(list)
    for name, shape in declared.items():
        got = max(ledger.filled.get(one, 0.0) for one in (name, tied.get(name, name)))
        if got < prod(shape) and not any(one.search(name) for one in optional):
            number = re.search(r"\.(\d+)\.", name)
            layer = int(number[1]) if number else -1
            empty[_pattern(name, layer)].append((layer, got, prod(shape)))
    for pattern, places in sorted(empty.items()):
        yield Unfilled(parameter=pattern, layers=tuple(sorted({layer for layer, _, _ in places if layer >= 0})),
                       filled=round(sum(got for _, got, _ in places) / sum(size for _, _, size in places), 6))
