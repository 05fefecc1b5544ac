"""What two copies of one release may differ in, and which files loaders take, as data (compare.toml)."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec


class Generation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[generation]: what a release suggests for generating."""

    file: str
    """Name of the file."""
    idle: list[str]
    """Keys without effect on what is generated."""
    from_config: list[str]
    """Keys that the config stands in for where the file does not state them."""


class TokenizerFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[tokenizer]: the files of a tokenizer."""

    config: str
    """Name of its config."""
    template_key: str
    """Key of the config that holds the chat template."""
    template_file: str
    """File that may hold it instead."""
    idle: list[str]
    """Keys of the config without effect on tokens."""


class Loader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[loader]: what loaders take."""

    single: str
    """A file of weights that is taken before an index and its shards."""
    adapters: list[str]
    """Files that make a loader put other weights on top."""
    copies: list[str]
    """fnmatch patterns of other copies of the weights, which some loaders take."""


class Compare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """compare.toml; keys are fnmatch patterns of dotted keys."""

    idle: list[str]
    """Keys of the config without effect."""
    unordered: list[str]
    """Lists whose order says nothing."""
    dtype: list[str]
    """Keys that state the dtype of the weights."""
    quantization: list[str]
    """Keys of tables, and files, that describe how weights are stored."""
    spellings: dict[str, str]
    """Key -> the key that it is compared as."""
    generation: Generation
    """What is suggested for generating."""
    tokenizer: TokenizerFiles
    """Files of a tokenizer."""
    loader: Loader
    """What loaders take."""


@cache
def words() -> Compare:
    """The shipped table. Raises msgspec.ValidationError when the file is wrong."""
    return msgspec.toml.decode(files("dayzero.data").joinpath("compare.toml").read_bytes(), type=Compare)
