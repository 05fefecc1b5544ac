"""From facts to tensors: standard blocks and extra rows become a tensor table of full size.

Cards and releases that have only a config use the same mechanism.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

import numpy as np

from dayzero.data.vocabulary import Block, Format, Row, blocks, vocabulary
from dayzero.errors import CardError, did_you_mean
from dayzero.floats import dtype_named
from dayzero.schema import Column, TensorGroup, TensorTable
from dayzero.schema.release import ITEM_BITS

from . import names
from .config import Config, printable, shortened
from .expression import UnknownName, evaluate
from .facts import FLAGS, Facts
from .layers import indexed_layers, merged_tokens
from .quant import PLAIN
from .stated import WHOLE_ROW, quantised

KINDS = ("all", "full", "sliding", "sparse", "latent", "linear", "dense", "experts", "indexed", "merging",
         "overlapping", "both", "single")
_NUMBERS = re.compile("[0-9]{1,5}(-[0-9]{1,5})?")
MOST_AXES = 64
MOST_TENSORS = 5_000_000
USUAL = "BF16"
"""dtype of weights where a config states none that is known and not quantised."""


@dataclass(frozen=True)
class Use:
    """How a block is used: what differs from its standard form."""

    block: Block
    """The block."""
    layers: tuple[int, ...]
    """Layers that have it; empty for one that is not in a layer."""
    at: str
    """What its names begin with."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """Segments of its names that are spelled otherwise."""
    without: Sequence[str] = ()
    """Rows that are left out."""
    format: str | None = None
    """Quantised format of its matrices."""
    dtype: str | None = None
    """dtype instead of the rows' own."""
    excludes: Callable[[str], bool] = lambda module: False
    """Whether a module, by its full name, is left plain all the same."""


@dataclass(frozen=True)
class Piece:
    """Tensors of one name, shape and dtype."""

    shape: tuple[int, ...]
    dtype: str
    layers: tuple[int, ...]
    experts: int

    @property
    def count(self) -> int:
        """Number of tensors."""
        return max(1, len(self.layers)) * max(1, self.experts)


class Tensors(NamedTuple):
    """Tensors of one name pattern: what `Builder.add` takes."""

    name: str
    shape: Sequence[int]
    dtype: str
    layers: tuple[int, ...]
    experts: int


class Architecture:
    """What expressions and layer lists refer to."""

    def __init__(self, config: Config, facts: Facts, attention: Sequence[str], feed_forward: Sequence[str]) -> None:
        self.config = config
        self.facts = facts
        self.kinds = [{*kinds} for kinds in zip(attention, feed_forward, strict=True)]
        indexed, merged = indexed_layers(config, facts, attention), merged_tokens(config, facts)
        for layer, kinds in enumerate(self.kinds):
            merging = merged[layer] > 1
            kinds.add("single" if "none" in kinds else "both")
            kinds.update({"indexed"} if layer in indexed else (), {"merging"} if merging else (),
                         {"overlapping"} if merging and layer in indexed else ())
        sliding = {f"sliding_{name}": facts[name] for name in ("heads", "kv_heads", "head_dim", "v_head_dim")}
        self.variables = {**config.variables(), **dict.fromkeys((*FLAGS, "zero_experts"), 0), **sliding, **facts}
        self.problems: list[str] = []
        self.dtype = self._dtype(config.text("dtype"))
        self.quantised = quantised(config.table("quantization"), self.problems)

    def _dtype(self, stated: str) -> str:
        named = dtype_named(stated)
        if stated and named not in PLAIN:
            self.problems.append(f"dtype: {printable(stated)} (taken for {USUAL.lower()})")
        return named if named in PLAIN else USUAL

    @property
    def stated_layers(self) -> int:
        """Decoder layers, and those of multi-token prediction that the config states."""
        return len(self.kinds) + self.facts.get("mtp_layers", 0)

    def layers(self, text: str, *, bounded: bool = False) -> tuple[int, ...]:
        """`all`, kinds, layers and ranges joined by `+` or `,`: `latent+61`, `0-2,5`. `bounded`: a range may not go
        beyond the layers that are stated. Raises CardError."""
        chosen: set[int] = set()
        for word in filter(None, (part.strip() for part in text.replace(",", "+").split("+"))):
            first, _, last = word.partition("-")
            if _NUMBERS.fullmatch(word):
                if bounded and last and int(last) >= self.stated_layers:
                    raise CardError(f"layers {word} end behind the last, the model has {len(self.kinds)}",
                                    "count from 0; prediction layers that [config] does not state are named one by one")
                chosen.update(range(int(first), int(last or first) + 1))
            elif word in KINDS:
                chosen.update(index for index, kinds in enumerate(self.kinds) if word in kinds or word == "all")
            else:
                raise CardError(f"not layers: {shortened(word)} in {shortened(text)}",
                                f"use {', '.join(KINDS)}, or numbers such as 0-2,5")
        return tuple(sorted(chosen))

    def has(self, fact: str | None) -> bool:
        """Whether one of the facts joined by `|` is there and not 0."""
        return any(self.variables.get(name) for name in (fact or "").split("|"))


class Builder:
    """Collects tensors; a later one replaces an earlier one of the same name and layer."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.pieces: dict[str, list[Piece]] = {}
        """Name pattern -> the tensors of that name."""
        self._count = 0

    def add(self, name: str, shape: Sequence[int], dtype: str, layers: Iterable[int] = (), experts: int = 0) -> None:
        """Tensors of one name pattern. Raises CardError for an unknown dtype and a shape that makes no sense."""
        if dtype not in ITEM_BITS:
            raise CardError(f"{name}: unknown dtype {dtype!r}",
                            f"{did_you_mean(dtype.upper(), ITEM_BITS)}known: {', '.join(ITEM_BITS)}")
        if len(shape) > MOST_AXES or any(size < 0 for size in shape) or prod(shape) >= 1 << 50:
            raise CardError(f"{name}: shape {shortened(list(shape))} makes no sense",
                            "check the facts that it is made of")
        if ("{L}" in name) != bool(layers := tuple(layers)):
            raise CardError(f"{name}: {'no layers are given' if not layers else 'there is no {L} in the name'}",
                            "give layers, and {L} where the layer's number stands, or neither")
        if ("{E}" in name) != bool(experts) or experts < 0:
            raise CardError(f"{name}: {experts} experts",
                            "give experts, and {E} where the expert's number stands, or neither")
        before = self.pieces.get(name, [])
        kept = [replace(piece, layers=tuple(sorted(set(piece.layers) - set(layers)))) for piece in before]
        pieces = [*(piece for piece in kept if piece.layers), Piece(tuple(shape), dtype, layers, experts)]
        self.pieces[name] = pieces
        self._count += sum(piece.count for piece in pieces) - sum(piece.count for piece in before)
        if self._count > MOST_TENSORS:
            raise CardError(f"there would be more than {MOST_TENSORS} tensors",
                            "check the numbers of layers and experts")

    def add_block(self, use: Use) -> None:
        """The tensors of a block. Raises CardError; UnknownName when a fact is missing."""
        for row in rows_of(use, self.architecture):
            for tensors in row_tensors(row, use, self.architecture):
                self.add(*tensors)

    def table(self) -> TensorTable:
        """All tensors, without files. Raises CardError, and ReleaseError for too many kinds of tensors."""
        groups: dict[tuple[str, tuple[int, ...], str], list[tuple[int, int, int]]] = {}
        for name, pieces in self.pieces.items():
            for piece in pieces:
                for layer in piece.layers or (-1,):
                    pattern, number, expert = names.split(name.replace("{L}", str(layer)).replace("{E}", "0"))
                    if piece.experts and "{E}" not in pattern:
                        raise CardError(f"{name}: {{E}} does not follow a part that contains `expert`",
                                        "write it like experts.{E}.up_proj")
                    groups.setdefault((pattern, piece.shape, piece.dtype), []).append((number, expert, piece.experts))
        names.refuse_many(len(groups))
        return TensorTable(files=(), groups=tuple(_group(*key, rows) for key, rows in sorted(groups.items())))


def _group(pattern: str, shape: tuple[int, ...], dtype: str, rows: list[tuple[int, int, int]]) -> TensorGroup:
    """`rows`: (layer, expert, experts); experts stands for that many tensors, from 0."""
    rows = sorted(rows)
    layer = np.concatenate([np.full(max(1, experts), number) for number, _, experts in rows])
    expert = np.concatenate([np.arange(experts) if experts else np.array([expert]) for _, expert, experts in rows])
    return TensorGroup(pattern=pattern, shape=shape, dtype=dtype, layer=Column(layer), expert=Column(expert),
                       file=Column(np.full(len(layer), -1)), start=Column(np.zeros(len(layer))))  # fmt: skip


def rows_of(use: Use, architecture: Architecture) -> list[Row]:
    """The rows of a block that the config's facts ask for and that the use does not leave out."""
    return [row for row in use.block.tensors
            if (not row.when or architecture.has(row.when)) and not architecture.has(row.unless)
            and row.name not in use.without]


def row_tensors(row: Row, use: Use, architecture: Architecture) -> Iterator[Tensors]:
    """All tensors of one row of a block. Raises CardError; UnknownName when a fact is missing."""
    shape = [evaluate(size, architecture.variables) for size in row.shape]
    experts = evaluate(row.experts, architecture.variables) if row.experts else 0
    module = use.at + ".".join(use.rename.get(part, part) for part in row.name.split("."))
    matrix = len(shape) == 2 and row.param == ".weight" and not row.plain
    packed, plain = _divided(module, use) if use.format and matrix else ((), use.layers or (-1,))
    if use.format and packed:
        for end, dtype, sides in _stored(use.format, shape, architecture):
            yield Tensors(module + end, sides, dtype, _real(packed), experts)
    if plain:
        dtype = use.dtype or row.dtype or architecture.dtype
        yield Tensors(module + row.param, shape, dtype, _real(plain), experts)
    if row.bias and architecture.has(row.bias):
        yield Tensors(f"{module}.bias", shape[:1], use.dtype or architecture.dtype, use.layers, experts)


def _stored(name: str, shape: Sequence[int], architecture: Architecture) -> Iterator[tuple[str, str, list[int]]]:
    """(ending, dtype, shape) of the parts of a quantised matrix of [out, in], in groups and blocks of the size that
    the config states for its format."""
    form, stated = _format(name), architecture.quantised
    own = stated.sizes if stated.format == name else {}
    sizes = {"out": shape[0], "inp": shape[1], **form.sizes, **own}
    if sizes.get("group") == WHOLE_ROW:
        sizes["group"] = max(1, shape[1])
    for end, (dtype, sides) in form.parts.items():
        yield end, dtype, [evaluate(side, sizes) for side in sides]


def _divided(module: str, use: Use) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(layers where the module is quantised, layers where it is not); -1: it is not in a layer."""
    layers = use.layers or (-1,)
    plain = tuple(layer for layer in layers if use.excludes(module.replace("{L}", str(layer)).replace("{E}", "0")))
    return tuple(sorted(set(layers) - set(plain))), plain


def _real(layers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(layer for layer in layers if layer >= 0)


def _format(name: str) -> Format:
    formats = blocks().formats
    if name not in formats:
        raise CardError(f"no format is named {name!r}", f"{did_you_mean(name, formats)}known: {', '.join(formats)}")
    return formats[name]


def standard_uses(architecture: Architecture) -> list[tuple[str, Use]]:
    """The standard blocks that the config's facts ask for, by name."""
    uses = []
    for name, block in blocks().blocks.items():
        layers = architecture.layers(block.layers)
        wanted = (block.when is None or architecture.has(block.when)) and not architecture.has(block.unless)
        if wanted and bool(layers) == bool(block.layers):
            uses.append((name, Use(block, layers, block.at)))
    return uses


def standard_tensors(architecture: Architecture) -> tuple[Builder, list[str]]:
    """Tensors that the standard blocks would have, and what could not be worked out, one text each."""
    builder = Builder(architecture)
    stated, problems = architecture.quantised, architecture.problems
    experts = vocabulary().config.expert_formats.get(architecture.config.text("expert_dtype"))
    for name, use in standard_uses(architecture):
        own = experts if name == "experts" else None
        try:
            builder.add_block(replace(use, format=own or stated.of(name), excludes=stated.leaves_plain))
        except UnknownName as error:
            problems.append(f"estimate of {name}: {error.message}")
    return builder, problems
