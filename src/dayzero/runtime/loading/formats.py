"""Which stored tensors together make one matrix: a quantised weight is known by its dtype and the scales beside it.

What the endings of names mean is data (vocabulary.toml), as is how configs state the size of groups and the bits
(quantisation.toml). A format that is not known is refused when its matrix is wanted, never guessed. Needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from dayzero.data.quantisation import statements
from dayzero.data.vocabulary import form_of
from dayzero.errors import NotPossible

from .codes import padded
from .files import Files, Stored
from .quantised import Quantised
from .sources import DTYPES, POWERS, Plain, Source, items
from .words import ENDING, turned

_SEGMENTS = 3
"""Last parts of a name that its ending can be made of."""
_PACKED = ("packed", "packed_transposed")
_Members = list[tuple[str, str, Stored]]
"""Form, ending of the name and tensor; the matrix itself is the first."""
_Blocks = tuple[tuple[int, int], tuple[int, int]]
_ACTIVATIONS = ("input_activations", "output_activations", "kv_cache_scheme")
_HINT = "run it with an engine that supports the format, or use the release in another format"


@dataclass(frozen=True, eq=False)
class Unknown:
    """A matrix in a format that is not known."""

    name: str
    shape: tuple[int, ...]
    why: str

    def refuse(self) -> NotPossible:
        """What to raise when it is wanted."""
        return NotPossible(f"{self.name} cannot be read: {self.why}", _HINT)


class Sources:
    """Values by the names that the tensors would have unquantised. `config`: the config's quantisation table; empty
    when it has none. What a matrix is made of is looked at when it is asked for."""

    def __init__(self, files: Files, config: Mapping[str, Any]) -> None:
        self._files, self._config = files, config
        self._made: dict[str, Source | Unknown] = {}
        self._blocks: dict[tuple[tuple[int, ...], tuple[int, ...]], _Blocks | None] = {}
        self._shapes: dict[tuple[str, tuple[int, ...], tuple[int, ...]], tuple[int, ...]] = {}
        self._members: dict[str, _Members] = {}
        self._packed: set[str] = set()
        groups: dict[str, _Members] = {}
        for name, tensor in files.tensors.items():
            form, base = _form(name)
            groups.setdefault(base, []).append((form, name[len(base):], tensor))
        for base, members in groups.items():
            self._add(base, members)

    def _add(self, base: str, members: _Members) -> None:
        forms = {form for form, _, _ in members}
        weight = next((each for each in members if each[0] in _PACKED), None) or next(
            (each for each in members if each[0] == "weight"), None)
        if weight is None or "scale" not in forms:
            self._members.update({each[2].name: [each] for each in members})
            return
        form, ending, tensor = weight
        own = form == "packed" and not ending.startswith(".")
        name = base if own else f"{base}.weight" if form != "weight" else tensor.name
        self._members[name] = [weight, *(each for each in members if each is not weight and each[0] != "bias")]
        self._members.update({each[2].name: [each] for each in members if each[0] == "bias"})
        if own:
            self._packed.add(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __getitem__(self, name: str) -> Source | Unknown:
        if name not in self._made:
            members = self._members[name]
            scale = next((each[2] for each in members if each[0] == "scale"), None)
            if scale is None or len(members) == 1:
                self._made[name] = _plain(members[0][2])
            else:
                self._made[name] = self._quantised(members, scale)
        return self._made[name]

    def is_packed(self, name: str) -> bool:
        """Whether a matrix, always [..., out, in], is packed under the name of a parameter of whatever layout."""
        return name in self._packed

    def _quantised(self, members: _Members, scale: Stored) -> Source | Unknown:
        form, _, tensor = members[0]
        if form == "packed_transposed":
            found = turned(self._files, tensor, scale, members, self._config)
            return found or _unknown(members[0], scale, tensor.shape)
        bits = next(_numbers(self._config, statements().weight_bits), 0)
        zeros = next((each for kind, _, each in members if kind == "zero_point"), None)
        kind = _kind(form, tensor, scale, bits)
        shape = self._shapes.get((kind, tensor.shape, scale.shape))
        if shape is None:
            shape = _shape(self._files, kind, tensor, scale, members, bits)
            self._shapes[kind, tensor.shape, scale.shape] = shape
        if (shape, scale.shape) not in self._blocks:
            self._blocks[shape, scale.shape] = _blocks(shape, scale.shape, self._config) if shape else None
        known = self._blocks[shape, scale.shape]
        groups = next((each for _, end, each in members if end.endswith(ENDING)), None)
        odd = kind != "words" or len(shape) > 2
        if known is None or ((zeros or groups) and odd):
            return _unknown(members[0], scale, shape or tensor.shape)
        overall = tuple((each, "global" in end) for kind, end, each in members
                        if kind == "global_scale" and ("weight" in end or "scale_2" in end) and "amax" not in end)
        return Quantised(tensor, scale, kind, shape, *known, overall, padded(bits) if kind == "words" else None, zeros,
                         padded(bits, axis=0) if zeros else None, groups=groups)


def _unknown(weight: tuple[str, str, Stored], scale: Stored, shape: tuple[int, ...]) -> Unknown:
    form, _, tensor = weight
    return Unknown(tensor.name, shape, f"{form} {tensor.dtype} {list(tensor.shape)} with scales {scale.dtype} "
                   f"{list(scale.shape)} is a format that is not known")  # fmt: skip


def _plain(tensor: Stored) -> Source | Unknown:
    if tensor.dtype in DTYPES:
        return Plain(tensor)
    return Unknown(tensor.name, tensor.shape, f"its dtype is {tensor.dtype}")


def _form(name: str) -> tuple[str, str]:
    """(form, module) of a tensor's name."""
    parts = name.rsplit(".", _SEGMENTS)
    front = parts[0] + "." if len(parts) > _SEGMENTS else ""
    form, base = _form_of_end(name[len(front):])
    return form, front + base


@cache
def _form_of_end(end: str) -> tuple[str, str]:
    return form_of(end)


def _kind(form: str, tensor: Stored, scale: Stored, bits: int) -> str:
    """Empty for one that is not known."""
    small = scale.dtype in POWERS or scale.dtype.startswith("F8")
    if tensor.dtype in DTYPES and tensor.dtype.startswith("F8"):
        return "float8"
    if (tensor.dtype in ("F4", "U8") and small) or (tensor.dtype == "I8" and scale.dtype in POWERS):
        return "fp4"
    if tensor.dtype == "I8":
        return "int8"
    return "words" if tensor.dtype == "I32" and form == "packed" and 1 < bits <= 8 else ""


def _shape(files: Files, kind: str, tensor: Stored, scale: Stored, members: _Members, bits: int) -> tuple[int, ...]:
    """Logical shape; empty for one that is not known."""
    shape = tensor.shape
    if kind == "fp4":
        if len(shape) == len(scale.shape) + 1 and len(shape) > 2:  # groups have an axis of their own
            shape = (*shape[:-2], shape[-2] * shape[-1])
        return shape if tensor.dtype == "F4" else (*shape[:-1], shape[-1] * 2)
    if kind == "words":
        stated = next((each for _, end, each in members if end.endswith("weight_shape")), None)
        wide = shape[-1] * (32 // bits)
        if stated is not None and len(shape) == prod(stated.shape):
            logical = tuple(items(files, stated, 0, len(shape)).tolist())
            return logical if logical[:-1] == shape[:-1] and wide - 32 // bits < logical[-1] <= wide else ()
        return (*shape[:-1], wide)
    return shape if kind else ()


def _blocks(shape: tuple[int, ...], scales: tuple[int, ...],
            config: Mapping[str, Any]) -> _Blocks | None:
    """((rows, columns) that share a scale, (rows of scales of a matrix, columns)); None when the shapes do not fit."""
    if prod(scales) == 1:
        return (shape[-2] if len(shape) > 1 else 1, shape[-1]), (0, 1)
    rows = shape[-2] if len(shape) > 1 else 1
    if len(scales) == len(shape) - 1 and scales == shape[:-1]:
        scales = (*scales, 1)
    if len(scales) == 1 and len(shape) > 2 and scales == shape[:1]:  # one for each matrix
        scales = (*scales, 1, 1)
    if len(scales) != len(shape) or scales[:-2] != shape[:-2] or not prod(scales):
        return None
    high = scales[-2] if len(scales) > 1 else 1
    return (_size(rows, high, config), _size(shape[-1], scales[-1], config)), (high, scales[-1])


def _size(extent: int, scales: int, config: Mapping[str, Any]) -> int:
    """Values that share a scale: as the config states it, else the power of two, else the smallest that fits."""
    stated = (*statements().group_sizes, "weight_block_size", "block_structure")
    for size in (1, *(size for size in _numbers(config, stated) if size > 1)):
        if -(-extent // size) == scales:
            return size
    least = -(-extent // scales)
    power = 1 << (least - 1).bit_length()
    return power if -(-extent // power) == scales and scales > 1 else least


def _numbers(config: Mapping[str, Any], keys: Any) -> Iterator[int]:
    """Integers under any of the keys, anywhere in a table of weights."""
    for key, value in config.items():
        if key in keys:
            yield from (each for each in (value if isinstance(value, list) else [value])
                        if isinstance(each, int) and not isinstance(each, bool))
        elif isinstance(value, Mapping) and key not in _ACTIVATIONS:
            yield from _numbers(value, keys)
