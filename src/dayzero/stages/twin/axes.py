"""Which numbers each size of a tensor is made of: `[18432, 7168]` of a query projection is
`heads * (nope_dim + rope_dim)` by `hidden_size`.

The standard blocks (blocks.toml) know it for the usual weights; for others the expressions that blocks use are tried on
each axis, those of the weight's role first. A size that nothing explains is kept as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache

from dayzero.data.twin import twin_facts
from dayzero.data.vocabulary import Block, Row, blocks, spellings
from dayzero.expression import ExpressionError, evaluate
from dayzero.schema import ModelSpec

from .facts import TOWER, Facts

Size = int | str
LEAST = 16
"""Smaller sizes are kept unless the role says what they are."""
MULTIPLES = (2, 3, 4, 6, 8, 9, 12, 16)
_NAME = re.compile(r"[a-z_][\w.]*")
_KINDS = frozenset({"full", "sliding", "sparse", "latent", "linear", "dense", "experts"})


class Axes:
    """Explains sizes of one release."""

    def __init__(self, facts: Facts, model: ModelSpec, free: Iterable[str]) -> None:
        self.values = facts.values
        self.model = model
        self.free = frozenset(free)
        self.kept: dict[str, tuple[int, ...]] = {}
        """Name pattern -> sizes that nothing explains."""

    def of(self, pattern: str, role: str, layers: tuple[int, ...], shape: tuple[int, ...]) -> tuple[Size, ...]:
        """An expression, or a number that is kept, for each axis of [..., out, in]."""
        place = role.split(".")[0]
        if place in ("vision", "audio", "projector"):
            return tuple(self._tower(pattern, place, size) for size in shape)
        role = role.removeprefix("unused.").removeprefix("mtp.")
        kinds = self._kinds(layers)
        for row in _rows(role, kinds, pattern):
            same = len(row.shape) == len(shape) and all(map(self._is, row.shape, shape))
            if same:
                return tuple(row.shape)
        return tuple(self._one(pattern, role, kinds, size, axis) for axis, size in enumerate(shape))

    def _kinds(self, layers: tuple[int, ...]) -> frozenset[str]:
        decoder = self.model.layers
        here = [decoder[layer] for layer in layers if layer < len(decoder)] or decoder[-1:]
        attention = {self.model.attentions[layer.attention].kind for layer in here}
        return frozenset(attention | {layer.feed_forward for layer in here})

    def _is(self, text: Size, size: int) -> bool:
        if isinstance(text, str) and not self.values.keys() >= names_in(text):
            return False
        try:
            return evaluate(text, self.values) == size
        except ExpressionError:
            return False

    def _one(self, pattern: str, role: str, kinds: frozenset[str], size: int, axis: int) -> Size:
        own = [row.shape for row in _rows(role, kinds, pattern)]
        texts = [shape[axis] for shape in own if axis < len(shape)] + [text for shape in own for text in shape]
        texts += twin_facts().axes.get(role, [])
        found = self._first(texts, size)
        if found is None and size >= LEAST:
            found = self._first((*twin_facts().axes["any"], *_expressions()), size)
        if found is None and size >= LEAST:
            widths = ("hidden_size", *twin_facts().cut, *twin_facts().uncut)
            found = self._first((f"{count} * {name}" for count in MULTIPLES for name in widths), size)
        if found is None and size >= LEAST and not self._is_constant(size):
            self.kept[pattern] = tuple(dict.fromkeys((*self.kept.get(pattern, ()), size)))
        return size if found is None else found

    def _first(self, texts: Iterable[Size], size: int) -> Size | None:
        """The first expression of that value with a number that the twin changes."""
        return next((text for text in texts if isinstance(text, str) and self._is(text, size)
                     and self.free & names_in(text)), None)  # fmt: skip

    def _is_constant(self, size: int) -> bool:
        return any(value == size for name, value in self.values.items() if name not in self.free)

    def _tower(self, pattern: str, place: str, size: int) -> Size:
        names = [name for name in self.values if name.startswith(TOWER) and name in self.free
                 and (place != "audio" or "audio" in name or "speech" in name)] + ["hidden_size"]  # fmt: skip
        for count in (1, *MULTIPLES):
            for name in names:
                if count * self.values[name] == size:
                    return name if count == 1 else f"{count} * {name}"
        if size >= 4 * LEAST and not self._is_constant(size):
            self.kept[pattern] = tuple(dict.fromkeys((*self.kept.get(pattern, ()), size)))
        return size


@cache
def names_in(text: str) -> frozenset[str]:
    """Names in an expression."""
    return frozenset(_NAME.findall(text)) - {"min", "max"}


def _rows(role: str, kinds: frozenset[str], pattern: str) -> list[Row]:
    """Rows of standard blocks that have a role, in layers of these kinds; those of that name first."""
    found = []
    for block, row in _all_rows():
        wanted = _KINDS.intersection(re.split(r"\W", block.layers))
        if (not wanted or wanted & kinds) and _has_role(block, row, role):
            found.append(row)
    words = pattern.split(".")
    return sorted(found, key=lambda row: row.name.rpartition(".")[2] not in words)


@cache
def _all_rows() -> tuple[tuple[Block, Row], ...]:
    return tuple((block, row) for block in blocks().blocks.values() for row in block.tensors)


def _has_role(block: Block, row: Row, role: str) -> bool:
    leaf, place = row.name.rpartition(".")[2], role.split(".")[0]
    if ("{E}" in row.name) != (place == "experts") or ("shared_expert" in row.name) != (place == "shared_experts"):
        return False
    if place in ("indexer", "compressor"):
        return place in block.at
    return any(fnmatchcase(leaf, word) for word in spellings(role))


@cache
def _expressions() -> tuple[str, ...]:
    """All expressions of the standard blocks, the shortest first."""
    texts: Mapping[str, None] = dict.fromkeys(
        text for _, row in _all_rows() for text in row.shape if isinstance(text, str))
    return tuple(sorted(texts, key=lambda text: (len(_NAME.findall(text)), len(text))))
