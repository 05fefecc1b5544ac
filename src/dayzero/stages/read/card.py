"""Cards: a model's architecture as facts. The release's config and its full-size tensor table follow from them.

    [card]        name, hub id, sources, and what every name of a block begins with
    [config]      config.json, key by key
    [[blocks]]    standard blocks (data/blocks.toml) and where they differ; none: those that the config asks for
    [[tensors]]   further tensors, `{L}` and `{E}` in their names for layer and expert, sizes as numbers or expressions
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dayzero.data.vocabulary import blocks
from dayzero.errors import CardError, ReleaseError, did_you_mean
from dayzero.schema import Release, Request, TensorTable, to_json

from .blocks import Architecture, Builder, Piece, Use, standard_uses
from .card_nulls import with_nulls
from .config import Config, printable, shortened
from .expression import evaluate
from .facts import language_facts
from .folder import read_bounded
from .layers import attention_kinds, feed_forward_kinds
from .roles import role_of
from .spec import is_tied, model_spec

CARD_LIMIT = 4 * 2**20


class About(Request, frozen=True, kw_only=True):
    """[card]"""

    name: str
    """Name of the release, for people."""
    hub: str = ""
    """Where it is published, such as org/name."""
    sources: list[str] = []
    """Where the facts were read."""
    prefix: str = ""
    """What the names of all blocks begin with."""
    nulls: list[str] = []
    """Keys of [config] that are null, which TOML has no word for, as JSON pointers: `/text_config/sliding_window`."""


class BlockRequest(Request, frozen=True, kw_only=True):
    """[[blocks]]"""

    use: str
    """Name of a standard block, or `standard` for all that the config asks for."""
    layers: str | list[int] | None = None
    """Layers that have it, as kinds and numbers (`latent+61`, `0-2`) or as a list; absent: the block's own."""
    at: str | None = None
    """What its names begin with; absent: the block's own."""
    rename: dict[str, str] = {}
    """Segments of its names that are spelled otherwise."""
    without: list[str] = []
    """Names that are left out: tensors of a block, blocks of `standard`."""
    format: str | None = None
    """Quantised format of its matrices; absent: not quantised."""
    dtype: str | None = None
    """safetensors dtype; absent: the config's."""


class TensorRequest(Request, frozen=True, kw_only=True):
    """[[tensors]]"""

    name: str
    """Full name, with `{L}` and `{E}`."""
    shape: list[int | str]
    """Sizes, as numbers or expressions over the config's facts and keys."""
    dtype: str | None = None
    """safetensors dtype; absent: the config's."""
    layers: str | list[int] = ""
    """Layers that have it."""
    experts: int | str = 0
    """Number of experts that have it."""


class Card(Request, frozen=True, kw_only=True):
    """A card."""

    card: About
    """[card]"""
    config: dict[str, Any]
    """[config]"""
    blocks: tuple[BlockRequest, ...] = (BlockRequest(use="standard"),)
    """[[blocks]]"""
    tensors: list[TensorRequest] = []
    """[[tensors]]"""


def read_card(path: Path) -> Release:
    """The release that the card describes: no files, no weights, every tensor. Raises CardError."""
    card = parse_card(path)
    try:
        tensors = card_tensors(card)
        model = model_spec(card.card.name, card.config, tensors, provenance="")
    except CardError as error:
        raise CardError(f"{path.name}: {error.message}", error.hint) from None
    except ReleaseError as error:  # nothing was downloaded
        raise CardError(f"{path.name}: {error.message}", re.split(r"(?:, or |^)download ", error.hint)[0]
                        or "correct [config] in the card") from None
    return Release(name=card.card.name, origin=str(path), has_weights=False, files=(), tensors=tensors, index=None,
                   missing_shards=(), config=card.config, model=model, root=None, hub=card.card.hub)  # fmt: skip


def card_tensors(card: Card) -> TensorTable:
    """Every tensor that the card states. Raises CardError, and ReleaseError for its config."""
    architecture = architecture_of(card.config)
    builder = Builder(architecture)
    for number, request in enumerate(card.blocks, 1):
        with _Where("[[blocks]]", f"{number} ({request.use})"):
            for use in _uses(request, architecture, card.card.prefix):
                builder.add_block(use)
    of_blocks = dict(builder.pieces)
    for row in card.tensors:
        with _Where("[[tensors]]", row.name):
            shape = [evaluate(size, architecture.variables) for size in row.shape]
            layers = _layers(row.layers, architecture, row.name)
            builder.add(row.name, shape, row.dtype or architecture.dtype, layers,
                        evaluate(row.experts, architecture.variables))  # fmt: skip
            _refuse_contradiction(shape, layers, of_blocks.get(row.name, []))
    return builder.table()


def _refuse_contradiction(shape: list[int], layers: tuple[int, ...], of_blocks: list[Piece]) -> None:
    for piece in of_blocks:
        here = layers == piece.layers or set(layers) & set(piece.layers)
        if here and piece.shape != tuple(shape):
            raise CardError(f"its shape is {shortened(shape)}, that of the block {shortened(list(piece.shape))}",
                            "correct one of them, or leave it out of the block with `without`")


def architecture_of(config: dict[str, Any]) -> Architecture:
    """What a config alone says about sizes and layers. Raises ReleaseError."""
    stated = Config(config)
    facts = language_facts(stated)
    if is_tied(stated):
        facts["tied"] = 1
    return Architecture(stated, facts, attention_kinds(stated, facts, {}), feed_forward_kinds(stated, facts, {}))


class _Where:
    """Names the part of the card that an error is about."""

    def __init__(self, part: str, name: str) -> None:
        self._part, self._name = part, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CardError):
            text = error.message.removeprefix(f"{self._name}: ")
            raise CardError(f"{self._part} {self._name}: {text}", error.hint) from None


def _uses(request: BlockRequest, architecture: Architecture, prefix: str) -> list[Use]:
    known = blocks().blocks
    if request.use != "standard" and request.use not in known:
        raise CardError(f"no block is named {request.use!r}",
                        f"{did_you_mean(request.use, known)}known: standard, {', '.join(known)}")  # fmt: skip
    if request.use == "standard":
        _refuse_unknown(request.without, known)
        chosen = [use for name, use in standard_uses(architecture) if name not in request.without]
    else:
        block = known[request.use]
        _refuse_unknown(request.without, {row.name for row in block.tensors})
        chosen = [Use(block, architecture.layers(block.layers), block.at)]
    return [_adapted(use, request, architecture, prefix) for use in chosen]


def _adapted(use: Use, request: BlockRequest, architecture: Architecture, prefix: str) -> Use:
    at = prefix + (use.at if request.at is None else request.at)
    layers = use.layers if request.layers is None else _layers(request.layers, architecture, f"{at}x")
    return Use(block=use.block, layers=layers, at=at, rename=request.rename, without=request.without,
               format=request.format, dtype=request.dtype)  # fmt: skip


def _refuse_unknown(names: list[str], known: Mapping[str, Any] | set[str]) -> None:
    for name in names:
        if name not in known:
            raise CardError(f"without names {name!r}, which is not there",
                            f"{did_you_mean(name, known)}known: {', '.join(sorted(known))}")  # fmt: skip


def _layers(layers: str | list[int], architecture: Architecture, name: str) -> tuple[int, ...]:
    """Layers of tensors of that name; those of a tower are not the decoder's."""
    if isinstance(layers, str):
        return architecture.layers(layers, bounded=not role_of(name).in_tower)
    if not all(0 <= layer < 100_000 for layer in layers):
        raise CardError("a layer is negative or absurdly large", "count layers from 0")
    return tuple(sorted(set(layers)))


def parse_card(path: Path) -> Card:
    """What the file states. Raises CardError."""
    try:
        data = read_bounded(path, CARD_LIMIT, printable(str(path)))
    except ReleaseError as error:
        raise CardError(error.message, "give the path of a card (*.toml)") from None
    try:
        card = msgspec.toml.decode(data, type=Card)
        to_json(card)
    except msgspec.ValidationError as error:
        raise CardError(f"{path.name}: {error}", _advice(str(error))) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError too
        raise CardError(f"{path.name} is not TOML: {error}".replace("\n", " "), "correct it there") from None
    try:
        config = with_nulls(card.config, card.card.nulls)
    except CardError as error:
        raise CardError(f"{path.name}: {error.message}", error.hint) from None
    return msgspec.structs.replace(card, config=config, card=msgspec.structs.replace(card.card, nulls=[]))


def _advice(error: str) -> str:
    """What to do about a key that is not known, or of the wrong type."""
    field = re.search(r"unknown field `(.*?)`(?: - at `\$\.?(.*?)`)?", error)
    if field is None:
        return "see examples/cards for cards that are right"
    place = {"card": About, "blocks": BlockRequest, "tensors": TensorRequest}.get((field[2] or "").split("[")[0], Card)
    known = place.__struct_fields__
    return f"{did_you_mean(field[1], known)}known: {', '.join(known)}"
