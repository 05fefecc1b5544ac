"""The vocabulary as data: how configs spell facts and how checkpoints name weights (vocabulary.toml), and the standard
blocks that architectures are made of (blocks.toml, towers.toml). Loaded once, checked by type."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeVar

import msgspec

T = TypeVar("T")


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[config]: spellings of config keys."""

    files: list[str]
    """Names of the file that holds the config, the first that is there counts."""
    text: list[str]
    """Tables that hold the language model."""
    towers: list[str]
    """Tables that describe other parts of the model."""
    sizes: dict[str, list[str]]
    """Integers of at least 1: fact -> spellings."""
    counts: dict[str, list[str]]
    """Integers; 0 and null mean that there is none."""
    flags: dict[str, list[str]]
    """true or false."""
    patterns: dict[str, list[str]]
    """Which layers are of a kind, in any of several forms."""
    words: dict[str, list[str]]
    """Texts and tables."""
    layer_types: dict[str, str]
    """Entry of a list of layer types -> kind of attention."""
    feed_forward_types: dict[str, str]
    """Entry of a list of layer types -> kind of feed-forward block."""
    indexers: dict[str, bool]
    """Entry of a list of indexers -> whether the layer has one of its own."""
    expert_formats: dict[str, str]
    """Dtype that a config states for routed experts -> format."""
    numbered_types: dict[str, list[str]]
    """Key of a list of numbers -> kind of attention that 0, 1 ... stand for."""
    known: dict[str, list[str]]
    """Keys that need no attention, as fnmatch patterns, by reason."""

    def spellings(self) -> dict[str, list[str]]:
        """Every fact with its spellings."""
        return {**self.sizes, **self.counts, **self.flags, **self.patterns, **self.words}


class Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[forms]]: what the end of a tensor's name says."""

    form: Literal["weight", "bias", "packed", "packed_transposed", "scale", "global_scale", "zero_point", "buffer"]
    """What the tensor is to its module."""
    end: str
    """Regular expression of the end of the name."""


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[feed_forward.places]: where a feed-forward matrix stands."""

    split: str
    """What tensor parallelism cuts."""
    within: list[str]
    """Path segments, one of which must be there; empty: anywhere."""


class Matrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[feed_forward.matrices]: one matrix of a feed-forward block."""

    axis: int
    """Axis of [out, in] that is the inner width."""
    words: list[str]
    """Last segment of the module's name."""


class FeedForwardWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[feed_forward]"""

    places: dict[str, Place]
    """First part of the role."""
    matrices: dict[str, Matrix]
    """Second part of the role."""


class RoleWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[roles]]: names of one role's weights."""

    role: str
    """The role."""
    words: list[str]
    """fnmatch patterns of the last segment of the module's name."""
    within: list[str] = []
    """Path segments, one of which must be among its parents; empty: anywhere."""
    depth: int = 0
    """Most segments that the name may have; 0: any number."""
    split: str = "replicated"
    """What tensor parallelism cuts."""
    axis: int | None = None
    """Axis of [out, in] that is cut."""


class Quantisation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[quantisations]]: how a config states a format of blocks.toml."""

    format: str
    """The format."""
    quant_method: str | None = None
    """Value of quant_method."""
    fmt: str | None = None
    """Value of format."""
    quant_algo: str | None = None
    """Value of quant_algo."""
    bits: int | None = None
    """Bits of a weight."""
    needs: str | None = None
    """Key that must be there and not null."""
    only: list[str] = []
    """Blocks that it applies to; empty: every matrix that is not excluded."""


class Gated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[gated]: activations that come with a gate."""

    keys: list[str]
    """Config keys that state the activation."""
    values: list[str]
    """Activations."""
    never: list[str]
    """Activations of blocks without a gate."""


class Parts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[parts]]: what the layers of some kinds hold."""

    kinds: list[str]
    """Kinds of attention or of feed-forward block."""
    needs: list[str]
    """Roles joined by `|`, of which one has to be there."""
    always: list[str] = []
    """Those of `needs` that every single layer has."""
    gate: str = ""
    """The same, for a block whose activation is one that comes with a gate; empty: none."""


class Vocabulary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vocabulary.toml"""

    config: Words
    """How configs spell facts."""
    quantisations: list[Quantisation]
    """How configs state quantisation."""
    forms: list[Form]
    """Ends of tensor names."""
    scopes: dict[str, list[str]]
    """Parts of a model beside the decoder -> path segments."""
    feed_forward: FeedForwardWords
    """Feed-forward weights."""
    roles: list[RoleWords]
    """All other weights."""
    gated: Gated
    """Activations that come with a gate."""
    parts: list[Parts]
    """What layers hold."""


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor of a block."""

    name: str
    """Module name below the block's place, with `{E}` where each expert has one; `.weight` is added."""
    shape: list[int | str]
    """[out, in] or [width], each a number or an expression over the config's facts."""
    param: str = ".weight"
    """What is added to the module's name; empty: the name is the tensor's."""
    bias: str | None = None
    """Fact that says whether there is a bias; None: never."""
    when: str | None = None
    """Fact that must be there (and not 0) for the tensor to exist."""
    unless: str | None = None
    """Fact that must not be there."""
    experts: str | None = None
    """Expression for the number of `{E}`."""
    dtype: str | None = None
    """safetensors dtype; None: the config's."""
    plain: bool = False
    """Never quantised."""


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A standard block: the tensors of one part of a layer, or of the model."""

    tensors: list[Row]
    """Its tensors."""
    layers: str = ""
    """Layers that have it: `all`, or kinds of attention or feed-forward block, or `indexed` (an indexer of their own),
    `merging` (a cache compressed along the sequence), `overlapping` (these two), `both` (mixing and feed-forward),
    `single` (one of them), joined by `+`; empty: not in a layer."""
    at: str = ""
    """What its names begin with, with `{L}` for the layer."""
    when: str | None = None
    """Fact that must be there for the block to be used without a card."""
    unless: str | None = None
    """Fact that must not be there."""


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a matrix is stored when quantised: its parts, over `out` and `inp`, rows and columns of the matrix, and the
    format's sizes."""

    parts: dict[str, tuple[str, list[int | str]]]
    """Ending that replaces `.weight` -> dtype and shape."""
    sizes: dict[str, int] = {}
    """Sizes where the config states none: `group`, the values of a row that share a scale (-1: all); `block_out` and
    `block_inp`, those of a block."""


class Blocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """blocks.toml"""

    blocks: dict[str, Block]
    """Standard blocks by name."""
    formats: dict[str, Format]
    """Quantised formats by name."""


class Towers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """towers.toml"""

    tables: list[str]
    """Tables of configs that describe a vision tower."""
    needs: list[str]
    """Facts without which nothing is known about the size of one."""
    gated_words: list[str]
    """Activations of towers whose blocks have a gate."""
    gated_tables: list[str]
    """Tables whose towers have one without saying so."""
    listed: list[str]
    """Facts that are stated as lists, and count by their length."""
    unlike: list[str]
    """fnmatch patterns of model types whose towers are not estimated."""
    facts: dict[str, list[str]]
    """Fact -> spellings; joined by ` * `: the product of keys."""
    defaults: dict[str, int]
    """Facts that need not be stated."""
    tensors: list[Row]
    """The standard tower; `{L}` and `{S}` in names: each layer, each merger beside the last."""


def _load(name: str, type_: type[T]) -> T:
    text: Any = files("dayzero.data").joinpath(name).read_bytes()
    return msgspec.toml.decode(text, type=type_)


@cache
def vocabulary() -> Vocabulary:
    """How configs and checkpoints name things."""
    return _load("vocabulary.toml", Vocabulary)


@cache
def blocks() -> Blocks:
    """The standard blocks and formats."""
    return _load("blocks.toml", Blocks)


@cache
def towers() -> Towers:
    """The standard vision tower."""
    return _load("towers.toml", Towers)


def spellings(role: str) -> list[str]:
    """What the last segment of a weight's name is for a role: fnmatch patterns. `norm.final` is spelled like `norm`."""
    place, _, matrix = role.partition(".")
    words = vocabulary().feed_forward
    if place in words.places and matrix in words.matrices:
        return words.matrices[matrix].words
    return [word for entry in vocabulary().roles if entry.role in (role, role.removesuffix(".final"))
            for word in entry.words]


@cache
def _forms() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((form.form, re.compile(f"(?:{form.end})$")) for form in vocabulary().forms)


def form_of(pattern: str) -> tuple[str, str]:
    """(form, name without the ending that says so) of a tensor's name: what it is to its module, and the module."""
    for form, end in _forms():
        match = end.search(pattern)
        if match and match.start() > 0:
            return form, pattern[:match.start()]
    return "weight", pattern
