"""The tensors of a release as modules: a weight with its scales, zero points and bias, each with the numbers that its
sizes are made of; and the modules of the layers and experts that a twin keeps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import gcd, lcm, prod
from typing import Any

import numpy as np

from dayzero.data.twin import twin_facts
from dayzero.data.vocabulary import vocabulary
from dayzero.expression import evaluate
from dayzero.schema import Column, ModelSpec, Release, TensorGroup, WeightFamily

from .axes import Axes, Size, names_in
from .facts import Facts
from .layers import Kept
from .storage import WEIGHTS, Part, Storage, storage

TOWERS = ("vision", "audio", "projector")
_SIZES = ("group_size", "q_group_size", "weight_block_size", "block_structure")
_NOT_WEIGHTS = ("input_activations", "output_activations", "kv_cache_scheme")
_PLAIN_NAME = re.compile(r"(?:\d+ \* )?([a-z_][\w.]*)")


def is_table(dtype: str) -> bool:
    """Whether a dtype holds whole numbers or truths."""
    return dtype == "BOOL" or dtype[0] in "IU"


@dataclass(frozen=True)
class Kind:
    """What modules of one pattern that are stored alike have in common."""

    pattern: str
    """Name pattern of the module."""
    role: str
    """Role of its weight, or of what it has."""
    parts: Mapping[str, Part]
    """Ending -> tensor."""
    storage: Storage | None
    """How its matrix is stored with what belongs to it; None: it has no weight."""
    axes: tuple[Size, ...]
    """What the matrix's sizes are made of."""
    others: Mapping[str, tuple[Size, ...]]
    """Ending -> the same for a tensor that is not stored with a matrix, such as a bias."""
    turned: bool = False
    """Stacked experts are [experts, in, out]."""

    def shapes(self, values: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Stored shape of each part in a twin with such numbers."""
        made = self.storage.stored(self.logical(values)) if self.storage else {}
        return made | {end: tuple(evaluate(one, values) for one in axes) for end, axes in self.others.items()}

    def logical(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """Shape of the matrix, [..., out, in]."""
        return tuple(evaluate(one, values) for one in self.axes)

    def parameters(self, values: Mapping[str, int]) -> int:
        """Logical values of its weight and bias in a twin with such numbers; tables hold none."""
        shapes = self.shapes(values)
        own = self.storage is not None and (len(self.storage.parts) > 1 or not is_table(self.storage.weight.dtype))
        biases = sum(prod(shapes[end]) for end in self.others if self.parts[end].form == "bias")
        return biases + (prod(self.logical(values)) if own else 0)

    def fan_in(self, shape: tuple[int, ...]) -> int:
        """Numbers that are added up for one output: all but the first axis, of stacked experts one."""
        if len(shape) == 3 and "experts" in self.role:
            return shape[1] if self.turned else shape[2]
        return prod(shape[1:]) or 1


@dataclass
class Module:
    """One module of the twin."""

    kind: Kind
    """What it is like."""
    name: str
    """Its name in the twin."""
    files: dict[str, int] = field(default_factory=dict)
    """Ending -> file of the release that holds it; -1: none."""


@cache
def form_of(pattern: str) -> tuple[str, str]:
    """(form, module) of a tensor's name pattern."""
    for form in vocabulary().forms:
        match = re.search(f"(?:{form.end})$", pattern)
        if match and match.start() > 0:
            return form.form, pattern[:match.start()]
    return "weight", pattern


def modules_of(release: Release, kept: Kept, experts: int, axes: Axes) -> list[Module]:
    """Every module of the layers and experts that are kept, in the order of the table. Raises ReleaseError for a layout
    that is not known."""
    rows: dict[tuple[str, str], dict[str, tuple[TensorGroup, int]]] = {}
    decoder = _decoder_prefixes(release)
    for group in release.tensors.groups or [_estimated(family) for family in release.model.families]:
        _, module = form_of(group.pattern)
        end = group.pattern[len(module):]
        for name, row in _kept_rows(group, module, kept, experts, decoder):
            rows.setdefault((module, name), {})[end] = (group, row)
    kinds: dict[Any, Kind] = {}
    families = _families(release.model)
    made = []
    for (module, name), parts in rows.items():
        key = (module, *((end, id(group)) for end, (group, _) in sorted(parts.items())))
        if key not in kinds:
            kinds[key] = _kind(module, {end: group for end, (group, _) in parts.items()}, families, axes, release)
        made.append(Module(kinds[key], name, {end: int(group.file.values[row]) for end, (group, row) in parts.items()}))
    return made


def has_predictions(modules: list[Module], layers: int) -> bool:
    """Whether some are of multi-token prediction: in a part of that name, or in a layer behind the decoder's."""
    words = set(vocabulary().scopes["mtp"])
    return any(words.intersection(parts := module.name.split(".")) or module.kind.role.startswith("mtp.")
               or (f"layers.{layers}." in f"{module.name}." and not _in_tower(parts)) for module in modules)


def _in_tower(parts: list[str]) -> bool:
    return any({*parts}.intersection(vocabulary().scopes[tower]) for tower in TOWERS)


def block_sizes(modules: list[Module], facts: Facts) -> dict[str, int]:
    """Number -> values that share a scale along axes of that size. Of heads: the heads that a whole number of blocks
    needs, for `heads * 192` rows in blocks of 128 two; under `head_dim` the largest block along heads."""
    found: dict[str, int] = {}
    counted = {name for group in twin_facts().heads for name in group}
    for kind in {id(module.kind): module.kind for module in modules}.values():
        stored = kind.storage
        for axis, size in zip(kind.axes, stored.block, strict=True) if stored and stored.block else ():
            if size <= 1 or isinstance(axis, int):
                continue
            match = _PLAIN_NAME.fullmatch(axis)
            if match and match[1] not in counted:
                found[match[1]] = lcm(found.get(match[1], 1), size)
            for name in counted & names_in(axis):
                width = evaluate(axis, facts.values | {name: facts.values[name] + 1}) - evaluate(axis, facts.values)
                found[name] = lcm(found.get(name, 1), size // gcd(size, width))
                found["head_dim"] = lcm(found.get("head_dim", 1), size)
    return found


def _estimated(family: WeightFamily) -> TensorGroup:
    """The tensors of a family that was worked out from the config alone: in no file."""
    experts = family.experts if "{E}" in family.pattern else 1
    numbered = "{L}" in family.pattern
    layers = family.layers or tuple(range(family.count // experts) if numbered else (-1,))
    layer = np.repeat(np.array(layers), experts)
    expert = np.tile(np.arange(experts) if "{E}" in family.pattern else np.array([-1]), len(layers))
    nowhere = Column(np.full(len(layer), -1))
    return TensorGroup(pattern=family.pattern, shape=family.shape, dtype=family.dtype, layer=Column(layer),
                       expert=Column(expert), file=nowhere, start=nowhere)


def _decoder_prefixes(release: Release) -> set[str]:
    """What the names of decoder layers begin with."""
    return {family.pattern.partition("{L}")[0] for family in release.model.families
            if family.layers and not family.role.startswith(("mtp.", *TOWERS))}


def _kept_rows(group: TensorGroup, module: str, kept: Kept, experts: int,
               decoder: set[str]) -> Iterator[tuple[str, int]]:
    """(name of the module in the twin, row) of the tensors that are kept."""
    layers, numbers = group.layer.values, group.expert.values
    prefix = group.pattern.partition("{L}")[0] if "{L}" in group.pattern else None
    places: dict[int, int | None]
    if prefix in decoder:
        places = {old: kept.new(old) for old in np.unique(layers).tolist()}
    else:
        tower = _tower(np.unique(layers).tolist(), kept, prefix)
        places = {old: old if tower is None else (tower.index(old) if old in tower else None)
                  for old in np.unique(layers).tolist()}  # fmt: skip
    for row in np.flatnonzero(numbers < experts).tolist():
        new = places[int(layers[row])]
        if new is not None:
            yield module.replace("{L}", str(new)).replace("{E}", str(int(numbers[row]))), row


def _tower(layers: list[int], kept: Kept, prefix: str | None) -> tuple[int, ...] | None:
    """Layers that are kept of a tower whose tensors are numbered so; None: these numbers do not count its layers."""
    words = set((prefix or "").split("."))
    audio = bool(words.intersection(vocabulary().scopes["audio"]))
    for table, chosen in kept.towers.items():
        named = ("audio" in table or "speech" in table) == audio
        if named and prefix is not None and len(layers) > 1 and layers == list(range(kept.depths[table])):
            return chosen
    return None


def _families(model: ModelSpec) -> dict[tuple[str, tuple[int, ...], str], WeightFamily]:
    found: dict[tuple[str, tuple[int, ...], str], WeightFamily] = {}
    for family in model.families:
        key = (family.pattern, family.shape, family.dtype)
        if key not in found or found[key].role.startswith("mtp."):
            found[key] = family
    return found


def _kind(module: str, groups: dict[str, TensorGroup], families: Mapping[Any, WeightFamily], axes: Axes,
          release: Release) -> Kind:
    forms = {end: form_of(group.pattern)[0] for end, group in groups.items()}
    parts = {end: Part(forms[end], group.dtype, group.shape) for end, group in groups.items()}
    own = {end: families[group.pattern, group.shape, group.dtype] for end, group in groups.items()}
    owner = next((end for form in WEIGHTS for end in parts if forms[end] == form), None)
    role = own[owner if owner is not None else next(iter(own))].role
    stored: Storage | None = None
    sizes: tuple[Size, ...] = ()
    if owner is not None:
        weight = own[owner]
        items = weight.count * prod(weight.shape)
        values = max(1, weight.parameters // items) if items else 1
        inside = {end: part for end, part in parts.items() if part.form != "bias"}
        stored = storage(inside, weight.scheme, values, _sizes(release.model.quantization or {}), module)
        sizes = axes.of(f"{module}{owner}", role, weight.layers, stored.logical())
    others = {end: axes.of(f"{module}{end}", own[end].role, own[end].layers, part.shape)
              for end, part in parts.items() if stored is None or end not in stored.parts}  # fmt: skip
    return Kind(module, role, parts, stored, sizes, others, _is_turned(role, sizes))


def _is_turned(role: str, axes: tuple[Size, ...]) -> bool:
    """Whether stacked experts are stored [experts, in, out]: the axis that is not the inner width comes where the inner
    width should."""
    if len(axes) != 3 or "experts" not in role:
        return False
    inner = ["width" in str(one) for one in axes]
    return inner[2] != inner[1] and inner[2] != role.endswith("down")


def _sizes(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Sizes of groups and blocks of weights, anywhere in a table about quantisation."""
    found: list[int] = []
    for key, value in config.items():
        if key in _SIZES:
            listed = value if isinstance(value, list) else [value]
            found += [size for size in listed if type(size) is int and size > 1]
        elif isinstance(value, Mapping) and key not in _NOT_WEIGHTS:
            found += _sizes(value)
    return tuple(found)
