"""Tensor names as patterns with numbers, and rows of tensors as groups in columns.

`layers.3.mlp.experts.17.up_proj.weight` is `layers.{L}.mlp.experts.{E}.up_proj.weight` with layer 3 and expert 17.
The way back is exact: a number that would not print as it was written (`007`, 30 digits) stays in the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from dayzero.errors import ReleaseError
from dayzero.schema import Column, TensorGroup, TensorTable

# At most 18 digits: every such number fits a signed 64-bit column.
_NUMBER = re.compile(r"(?<![^.])(0|[1-9][0-9]{0,17})(?![^.])")

_NUMBERS = re.compile(r"\.(0|[1-9][0-9]{0,17})(?![^.\n])")
_STARTS = re.compile("[0-9]")
"""A name that begins with a number; `_NUMBERS`, which is several times as fast, begins with a dot."""

MOST_KINDS = 10_000
"""Names, shapes and dtypes that differ in more than numbers: real releases have tens or hundreds."""

Ints = np.ndarray[Any, np.dtype[np.int64]]
Kind = tuple[str, str, tuple[int, ...]]
"""(pattern, dtype, shape): what the tensors of a group share."""


def split(name: str) -> tuple[str, int, int]:
    """Tensor name -> (pattern, layer, expert); -1 where the name has no such number.

    The first numeric segment is the layer, unless it follows a segment that contains "expert": then it is the expert
    and there is no layer. After a layer, the first numeric segment that follows such a segment is the expert.
    """
    parts = _NUMBER.split(name)
    if len(parts) == 1:
        return name, -1, -1
    layer_at, expert_at, pattern = _places(tuple(parts[::2]))
    layer = int(parts[layer_at]) if layer_at >= 0 else -1
    expert = int(parts[expert_at]) if expert_at >= 0 else -1
    if pattern is None:
        marks = {layer_at: "{L}", expert_at: "{E}"}
        pattern = "".join(marks.get(at, part) for at, part in enumerate(parts))
    return pattern, layer, expert


def split_all(names: Sequence[str]) -> tuple[list[str], Ints, Ints]:
    """`split` of many names at once: (patterns, layers, experts)."""
    text = "\n".join(names)
    if text.count("\n") != len(names) - 1 or "\0" in text:  # a name has such a character itself
        each = [split(name) for name in names]
        layers, experts = (np.array([one[at] for one in each], np.int64) for at in (1, 2))
        return [one[0] for one in each], layers, experts
    texts = _NUMBERS.sub(".\0", text).split("\n")
    numbers = np.array(_NUMBERS.findall(text), dtype=np.int64)
    ids = {skeleton: at for at, skeleton in enumerate(dict.fromkeys(texts))}
    kinds = [_skeleton(skeleton) for skeleton in ids]
    patterns = [kind[0] for kind in kinds]
    kind = np.fromiter(map(ids.__getitem__, texts), np.int64, len(texts))
    count, layer_at, expert_at = np.array([kind[1:] for kind in kinds], np.int64)[kind].T
    first = np.cumsum(count) - count
    numbers = np.append(numbers, -1)
    layer, expert = (numbers[np.where(at < 0, -1, first + at)] for at in (layer_at, expert_at))
    found = [patterns[at] for at in kind.tolist()]
    for row in np.flatnonzero(np.array([pattern == "" for pattern in patterns])[kind]).tolist():
        found[row], layer[row], expert[row] = split(names[row])
    return found, layer, expert


def _skeleton(text: str) -> tuple[str, int, int, int]:
    """(pattern, numbers, which of them is the layer, which the expert) of a name whose numbers are NUL; the pattern is
    empty where `split` has to look at each such name."""
    parts = text.split("\0")
    layer_at, expert_at, pattern = _places(tuple(parts)) if len(parts) > 1 else (-1, -1, text)
    plain = pattern is not None and not _STARTS.match(text)
    return pattern if plain and pattern else "", len(parts) - 1, layer_at // 2, expert_at // 2


@lru_cache(maxsize=4096)
def _places(texts: tuple[str, ...]) -> tuple[int, int, str | None]:
    """For a name's text between its numbers: where layer and expert are among all its parts (-1: nowhere), and the
    pattern if there are no other numbers. The names of a release share a few dozen such texts.
    """
    layer_at = expert_at = -1
    for at, before in enumerate(texts[:-1]):
        if "expert" in before[:-1].rpartition(".")[2]:
            expert_at = 2 * at + 1
            break
        if layer_at < 0:
            layer_at = 2 * at + 1
    marks = [mark for place, mark in ((layer_at, "{L}"), (expert_at, "{E}")) if place >= 0]
    if len(marks) < len(texts) - 1:
        return layer_at, expert_at, None
    return layer_at, expert_at, "".join(part for pair in zip(texts, [*marks, ""], strict=True) for part in pair)


@dataclass(frozen=True, slots=True)
class Rows:
    """The tensors of one file, one row each, in the order of their data."""

    kinds: tuple[Kind, ...]
    """What `kind` counts through."""
    kind: Ints
    """Index into `kinds`."""
    layer: Ints
    """Layer; -1: none."""
    expert: Ints
    """Expert; -1: none."""
    start: Ints
    """First byte in the file."""
    new_dtypes: Mapping[str, int] = field(default_factory=dict)
    """Bits of one element of each dtype that the schema does not know, as the file shows them."""


def table(files: tuple[str, ...], shards: Iterable[Rows]) -> TensorTable:
    """The tensors of all files, grouped; `shards` in the order of `files`. Raises ReleaseError for a double name."""
    parts: dict[Kind, list[Ints]] = {}
    bits: dict[str, int] = {}
    for number, rows in enumerate(shards):
        for dtype, size in rows.new_dtypes.items():
            if bits.setdefault(dtype, size) != size:
                raise ReleaseError(f"elements of the unknown dtype {dtype!r} have {size} bits in {files[number]} and "
                                   f"{bits[dtype]} in another file", "get the release again")  # fmt: skip
        order = np.argsort(rows.kind, kind="stable")
        columns = np.stack([rows.layer, rows.expert, np.full_like(rows.layer, number), rows.start])[:, order]
        bounds = np.searchsorted(rows.kind[order], np.arange(len(rows.kinds) + 1))
        for index, kind in enumerate(rows.kinds):
            parts.setdefault(kind, []).append(columns[:, bounds[index] : bounds[index + 1]])
    refuse_many(len(parts))
    groups = []
    for (pattern, dtype, shape), pieces in sorted(parts.items(), key=lambda item: (item[0][0], item[0][2], item[0][1])):
        merged = np.concatenate(pieces, axis=1)
        layer, expert, file, start = merged[:, np.lexsort((merged[1], merged[0]))]
        groups.append(TensorGroup(pattern=pattern, shape=shape, dtype=dtype, layer=Column(layer), expert=Column(expert),
                                  file=Column(file), start=Column(start), item_bits=bits.get(dtype)))  # fmt: skip
    _refuse_duplicates(files, groups)
    return TensorTable(files=files, groups=tuple(groups))


def refuse_many(kinds: int) -> None:
    """Raise ReleaseError for more kinds of tensors than a model has."""
    if kinds > MOST_KINDS:
        raise ReleaseError(f"the tensors are of {kinds} kinds, by name without numbers, shape and dtype",
                           f"at most {MOST_KINDS} make sense; name the tensors of all layers alike")


def _refuse_duplicates(files: tuple[str, ...], groups: list[TensorGroup]) -> None:
    by_pattern: dict[str, list[TensorGroup]] = {}
    for group in groups:
        by_pattern.setdefault(group.pattern, []).append(group)
    for alike in by_pattern.values():
        layer, expert, file = (np.concatenate([getattr(group, column).values for group in alike])
                               for column in ("layer", "expert", "file"))  # fmt: skip
        order = np.lexsort((expert, layer))
        same = (np.diff(layer[order]) == 0) & (np.diff(expert[order]) == 0)
        if same.any():
            one, two = order[np.argmax(same)], order[np.argmax(same) + 1]
            name = alike[0].pattern.replace("{L}", str(layer[one])).replace("{E}", str(expert[one]))
            raise ReleaseError(f"tensor {name!r} is in two files: {files[file[one]]} and {files[file[two]]}",
                               "remove the file that does not belong to the release, or download it again")  # fmt: skip
