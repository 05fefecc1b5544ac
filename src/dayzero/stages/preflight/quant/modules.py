"""The weight matrices of a release with the names of their modules: what quantisation is stated and stored for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dayzero.placement.split import TOWERS, UNUSED
from dayzero.schema import Release, TensorGroup, WeightFamily

from .stated import Format

PLAIN = ("bf16", "f16", "f32", "f64")
"""Schemes that are not quantised."""
_WEIGHT = re.compile(r"(?:\.weight|\.weight_packed|\.qweight|_blocks)$")
_SCALE = re.compile(r"[._](?:weight_scale(?:_inv)?|weight_block_scale|scales|scale(?:_inv)?)$")
"""Ends of the names of scales that belong to weights."""
_OTHERS = re.compile(r"[._](?:input|output|k|v|q|kv)_scale$")
"""Those that belong to activations or caches."""
_INTEGER = re.compile(r"int(?P<bits>[0-9]+)")


@dataclass(frozen=True)
class Module:
    """The matrices of one pattern, shape and dtype."""

    group: TensorGroup
    """The tensors."""
    family: WeightFamily
    """What is known about them."""
    stem: str
    """Name pattern of the module: that of the tensors without its ending."""

    @property
    def role(self) -> str:
        """Role, without the mark of multi-token prediction."""
        return self.family.role.removeprefix("mtp.")

    @property
    def is_tower(self) -> bool:
        """Whether it is not a part of the language model."""
        return self.family.role.split(".")[0] in TOWERS

    @property
    def is_plain(self) -> bool:
        """Whether it is not quantised."""
        return self.family.scheme in PLAIN

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Numbers in place of `{L}`; -1: there is none."""
        return tuple(int(layer) for layer in np.unique(self.group.layer.values))

    def name(self, layer: int) -> str:
        """Module name in that layer; of many experts the first."""
        expert = int(self.group.expert.values[0]) if len(self.group.expert) else -1
        return self.stem.replace("{L}", str(layer)).replace("{E}", str(expert))


def modules(release: Release) -> list[Module]:
    """All weight matrices, in the order of the tensors."""
    families: dict[tuple[str, tuple[int, ...], str], WeightFamily] = {}
    for family in release.model.families:
        families.setdefault((family.pattern, family.shape, family.dtype), family)
    found = []
    for group in release.tensors.groups:
        known = families.get((group.pattern, group.shape, group.dtype))
        if known and _is_matrix(known):
            found.append(Module(group, known, stem(group.pattern)))
    return found


def _is_matrix(family: WeightFamily) -> bool:
    return (family.parameters > 0 and len(family.shape) > 1 and not family.pattern.endswith("bias")
            and not family.role.startswith(UNUSED))


def stem(pattern: str) -> str:
    """The module's name: a weight's without its ending."""
    return _WEIGHT.sub("", pattern)


def scheme_of(family: WeightFamily, form: Format | None) -> str | None:
    """Scheme of a stored family in the words of targets; None: its bits are not known. The files do not show how
    activations are quantised: that is taken from the stated `form`, and otherwise from what such weights are for."""
    integer = _INTEGER.fullmatch(family.scheme)
    if integer:
        bits = int(integer["bits"])
        if form and form.scheme.startswith(f"w{bits}a"):
            return form.scheme
        return f"w{bits}a8" if family.dtype == "I8" else f"w{bits}a16"
    return {"fp4": "w4a16", "packed": None}.get(family.scheme, family.scheme)


def agrees(scheme: str, family: WeightFamily, form: Format | None) -> bool:
    """Whether weights of a stated scheme may be stored like that family."""
    stored = scheme_of(family, form)
    if stored is None or stored == scheme:
        return True
    bits = re.fullmatch(r"w(?P<bits>[0-9]+)a[0-9]+", scheme)
    if bits:  # a table of 4-bit floats; or integers of few bits, one in a byte
        narrow = int(bits["bits"]) < 8 and family.dtype in ("I8", "U8")
        return narrow or family.scheme in (f"int{bits['bits']}", "fp4")
    return {scheme, stored} <= {"fp8", "mxfp8"}


def names(found: list[Module]) -> Iterator[str]:
    """Names of all modules, in all layers."""
    return (module.name(layer) for module in found for layer in module.layers)


def weight_scales(release: Release) -> dict[str, list[TensorGroup]]:
    """Name pattern of the module -> its scales of weights."""
    found: dict[str, list[TensorGroup]] = {}
    for group in release.tensors.groups:
        end = _SCALE.search(group.pattern)
        if end and not _OTHERS.search(group.pattern):
            found.setdefault(group.pattern[:end.start()], []).append(group)
    return found
