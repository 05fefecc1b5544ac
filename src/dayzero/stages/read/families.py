"""Weight families: every group of tensors with its role, its quantisation and the axis that tensor parallelism cuts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Any

import msgspec
import numpy as np

from dayzero.data.vocabulary import vocabulary
from dayzero.schema import TensorGroup, TensorTable, WeightFamily

from .quant import Stored, stored_as
from .roles import Role, role_of
from .scales import block_size

WEIGHTS = ("weight", "packed", "packed_transposed")
Rows = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Dims:
    """What of the config the reading of tensors depends on."""

    layers: int
    """Decoder layers; later ones are multi-token prediction."""
    expert_input: int
    """Width that routed experts read: it tells the orientation of stacked experts."""
    experts: int
    """Routed experts, for weights that hold all of them in one matrix."""
    quantization: Mapping[str, Any] | None
    """The config's quantisation table."""


@dataclass(frozen=True)
class Part:
    """A family with what the rest of reading needs to know about it."""

    family: WeightFamily
    """The family."""
    role: Role
    """What its name says."""
    shape: tuple[int, ...]
    """Logical shape: [..., out, in] of a matrix, [width] of a vector."""
    values: Fraction
    """Logical values in one stored item; 0: it holds no parameters."""

    @property
    def is_weight(self) -> bool:
        """Whether it is a weight itself: not a scale, a bias or a buffer."""
        return self.values > 0 and self.role.form != "bias"


def parts_of(tensors: TensorTable, dims: Dims) -> list[Part]:
    """The families of all tensors, in the table's order."""
    named = _with_experts([(role_of(group.pattern), group) for group in tensors.groups], dims)
    modules: dict[str, _Module] = {}
    for role, group in named:
        modules.setdefault(role.stem, _Module()).groups.setdefault(role.form, []).append(group)
    turned = _turned_experts(named, dims)
    parts = [_part(group, rows, role, is_mtp, modules[role.stem].beside(group), turned, dims)
             for role, group in named for rows, is_mtp in _by_layer(group, role, dims.layers)]
    return _whole_norms(parts)


def _with_experts(named: list[tuple[Role, TensorGroup]], dims: Dims) -> list[tuple[Role, TensorGroup]]:
    """The modules of a feed-forward block whose names say nothing of experts, and whose weights are of three axes with
    one entry of the first for each expert, are those of the experts."""
    stems = {role.stem for role, group in named if role.name.startswith("mlp.") and "{E}" not in group.pattern
             and len(group.shape) == 3 and group.shape[0] == dims.experts > 1}  # fmt: skip
    split = vocabulary().feed_forward.places["experts"].split
    return [(replace(role, name=role.name.replace("mlp", "experts", 1), split=split) if role.stem in stems else role,
             group) for role, group in named]


class _Module:
    """All tensors of one module."""

    def __init__(self) -> None:
        self.groups: dict[str, list[TensorGroup]] = {}
        """By form; several where shapes differ between layers."""

    def beside(self, group: TensorGroup) -> dict[str, TensorGroup]:
        """What the module has, by form: of several groups that of the first layer of `group`, if there is one."""
        layer = int(group.layer.values[0])
        return {form: self._by_layer[form].get(layer, groups[0]) if len(groups) > 1 else groups[0]
                for form, groups in self.groups.items()}

    @cached_property
    def _by_layer(self) -> dict[str, dict[int, TensorGroup]]:
        return {form: {int(layer): group for group in groups for layer in np.unique(group.layer.values)}
                for form, groups in self.groups.items() if len(groups) > 1}


def _by_layer(group: TensorGroup, role: Role, layers: int) -> Iterator[tuple[Rows, bool]]:
    """(rows, whether they are multi-token prediction): the decoder's rows, and those of layers after its last."""
    after = group.layer.values >= layers
    if role.scope:
        after = np.full(group.count, role.scope == "mtp")
    for mask, is_mtp in ((~after, False), (after, True)):
        if mask.any():
            yield np.flatnonzero(mask), is_mtp


def _is_stacked(role: Role, weight: TensorGroup) -> bool:
    """Whether the module with that weight holds all experts along its first axis."""
    return role.split == "experts" and "{E}" not in weight.pattern and len(weight.shape) > 2


def _turned_experts(named: list[tuple[Role, TensorGroup]], dims: Dims) -> set[str]:
    """Modules whose stacked experts are stored [experts, in, out]: the last axis is not their input."""
    turned = set()
    for role, group in named:
        reads_input = role.name.rpartition(".")[2] in ("gate", "up", "gate_up") and role.form == "weight"
        if _is_stacked(role, group) and len(group.shape) == 3 and reads_input:
            experts, first, last = group.shape
            if experts and last != dims.expert_input and first == dims.expert_input:
                turned.add(role.stem.rpartition(".")[0])
    return turned


def _part(group: TensorGroup, rows: Rows, role: Role, is_mtp: bool, siblings: dict[str, TensorGroup],
          turned: set[str], dims: Dims) -> Part:
    owner_form = next((form for form in WEIGHTS if form in siblings), role.form)
    is_scale = role.form in ("scale", "global_scale", "zero_point") and not _is_own(role, owner_form, dims)
    owner = siblings.get(owner_form, group)
    stacked = _is_stacked(role, owner)
    looked_at, form = (owner, owner_form) if is_scale else (group, role.form)
    stored = stored_as(looked_at, form, siblings, dims.quantization)
    if stacked and role.stem.rpartition(".")[0] in turned:
        stored = replace(stored, transposed=True)
    values = Fraction(0) if is_scale or role.form == "buffer" else stored.values
    axis = _axis(role, group.shape, stacked, stored.transposed) if role.form != "buffer" else None
    shape = _apart(role, group, _logical(stored, group, stacked), dims)
    block = _block(group, stored, stacked, axis, siblings, dims) if values and role.form in WEIGHTS else 1
    family = WeightFamily(
        role=f"mtp.{role.name}" if is_mtp and not role.name.startswith("mtp.") else role.name,
        pattern=group.pattern, shape=group.shape, dtype=group.dtype,
        scheme=stored.scheme if role.form != "buffer" else group.dtype.lower(),
        split="replicated" if axis is None else role.split, axis=axis, count=len(rows),
        layers=_layers(group, rows, role, dims), experts=_experts(group, rows, role, stacked, dims),
        parameters=prod(shape) * len(rows) if values else 0, stored_bytes=group.tensor_bytes * len(rows),
        block=block,
    )  # fmt: skip
    return Part(family, role, shape, values)


def _is_own(role: Role, owner_form: str, dims: Dims) -> bool:
    """Whether what is called a scale is a parameter itself: nothing is quantised, and it has no weight to scale."""
    return role.form == "scale" and owner_form == "scale" and dims.quantization is None


def _logical(stored: Stored, group: TensorGroup, stacked: bool) -> tuple[int, ...]:
    """Logical shape of the tensors, [..., out, in] of a matrix."""
    shape = stored.shape(group.shape)
    if stacked and len(shape) == 4:  # [experts, out, blocks, values of a block]
        return *shape[:2], shape[2] * shape[3]
    return shape


def _apart(role: Role, group: TensorGroup, shape: tuple[int, ...], dims: Dims) -> tuple[int, ...]:
    """[experts, out, in] of output projections of experts that lie one below the other in one matrix, as the input
    projections beside them do: [experts * width, input]. Any other shape as it is."""
    together = role.name == "experts.down" and "{E}" not in group.pattern and dims.experts > 1 and len(shape) == 2
    if together and shape[1] == dims.expert_input != shape[0] and shape[0] % dims.experts == 0:
        return dims.experts, shape[1], shape[0] // dims.experts
    return shape


def _block(group: TensorGroup, stored: Stored, stacked: bool, axis: int | None, siblings: dict[str, TensorGroup],
           dims: Dims) -> int:
    """Values along the stored `axis` that share a scale; 1: there is no scale with an axis of its own for it."""
    scale, extents = siblings.get("scale"), _logical(replace(stored, transposed=False), group, stacked)
    if axis is None or scale is None or len(scale.shape) != len(extents) or axis >= len(extents):
        return 1
    return block_size(extents[axis], scale.shape[axis], dims.quantization)


def _axis(role: Role, shape: tuple[int, ...], stacked: bool, transposed: bool) -> int | None:
    """Axis of the stored shape that is the role's axis of [out, in]; None: nothing is cut."""
    if role.axis is None:
        return None
    lead, wide = int(stacked), [axis for axis, size in enumerate(shape) if size > 1]
    if role.form == "bias" or len(wide) == 1:  # one value for each row
        last = wide[-1] if wide else 0
        return last if role.axis == 0 and wide and last >= lead else None
    axis = lead + (role.axis ^ int(transposed))
    return axis if axis < len(shape) and shape[axis] > 1 else None


def _layers(group: TensorGroup, rows: Rows, role: Role, dims: Dims) -> tuple[int, ...]:
    """Decoder layers of the rows; those of a separate multi-token-prediction part are counted on from the last."""
    if "{L}" not in group.pattern or role.in_tower:
        return ()
    first = dims.layers if role.scope == "mtp" else 0
    return tuple(int(layer) + first for layer in np.unique(group.layer.values[rows]))


def _experts(group: TensorGroup, rows: Rows, role: Role, stacked: bool, dims: Dims) -> int:
    if role.split != "experts":
        return 0
    if "{E}" in group.pattern:
        return len(np.unique(group.expert.values[rows]))
    return group.shape[0] if stacked and group.shape else dims.experts


def _whole_norms(parts: list[Part]) -> list[Part]:
    """Norms of queries and keys are cut with the heads if they are as wide as all of them, else each rank has all."""
    widths: dict[tuple[str, str], set[int]] = {}
    for part in parts:
        if part.role.name in ("attention.q", "attention.k") and part.is_weight and len(part.shape) > 1:
            key = (part.role.stem.rpartition(".")[0], part.role.name)
            widths.setdefault(key, set()).add(part.shape[-2])
    whole = []
    for part in parts:
        family = part.family
        if part.role.name in ("attention.q_norm", "attention.k_norm") and family.axis is not None:
            key = (part.role.stem.rpartition(".")[0], part.role.name.removesuffix("_norm"))
            if part.shape[-1] not in widths.get(key, ()):
                family = msgspec.structs.replace(family, split="replicated", axis=None)
        elif family.role == "norm" and not family.layers:
            family = msgspec.structs.replace(family, role="norm.final")
        whole.append(replace(part, family=family))
    return whole
