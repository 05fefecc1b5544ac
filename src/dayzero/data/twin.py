"""What a twin keeps and shrinks, as data (twin.toml). Loaded once, checked by type."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec


class Values(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[values]]: what tensors that are no matrices hold."""

    words: list[str]
    """fnmatch patterns of the last word of a name."""
    like: Literal["decay", "step", "frequencies", "one", "cache_scale", "small"]
    """The kind of numbers."""


class TwinFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """twin.toml"""

    splits: int
    """Largest tensor-parallel size whose divisibility is kept."""
    hidden: int
    """About the hidden size when no scale is asked for."""
    plain_block: int
    """Values that each rank has of a cut width whose format has no blocks."""
    experts: int
    """Most routed experts."""
    widest_tower: int
    """About the width of a tower."""
    heads: list[list[str]]
    """Facts that count heads: queries, then keys and values."""
    cut: list[str]
    """Widths that tensor parallelism cuts."""
    uncut: list[str]
    """Other widths."""
    expert_groups: list[str]
    """Keys of the number of groups of experts."""
    chosen_groups: list[str]
    """Keys of the number of groups that a token chooses from."""
    strides: list[str]
    """Keys of distances between layers."""
    by_number: list[str]
    """Facts by whose rule a layer's number decides its kind."""
    layer_lists: list[str]
    """Keys of lists of layers."""
    tower_lists: list[str]
    """Keys of lists of a tower's layers."""
    tower_widths: list[str]
    """Keys of widths of a tower."""
    not_tower_widths: list[str]
    """Keys that `tower_widths` fits and that are none."""
    rotary_lists: list[str]
    """Keys of lists about rotated pairs."""
    token_ids: list[str]
    """Keys of token ids."""
    derived: dict[str, str]
    """Fact -> expression, where no key states it."""
    axes: dict[str, list[str]]
    """Role, or `any` -> expressions for sizes."""
    values: list[Values]
    """Numbers of tensors that are no matrices."""


@cache
def twin_facts() -> TwinFacts:
    """What a twin keeps and shrinks."""
    return msgspec.toml.decode(files("dayzero.data").joinpath("twin.toml").read_bytes(), type=TwinFacts)
