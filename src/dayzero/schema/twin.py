"""Twin: a miniature of a release, and what was made smaller."""

from __future__ import annotations

from .base import Noun


class Shrunk(Noun, frozen=True, kw_only=True):
    """One number of a release and of its twin."""

    fact: str
    """What it is: a name of the vocabulary, or a config key."""
    keys: tuple[str, ...]
    """Config keys that state it; empty: it follows from others."""
    original: int
    """In the release."""
    twin: int
    """In the twin."""


class Twin(Noun, frozen=True, kw_only=True):
    """A miniature release that was written."""

    name: str
    """Name of the original."""
    origin: str
    """Where the original was read."""
    folder: str
    """Where the twin was written."""
    seed: int
    """Seed of its values."""
    scale: float
    """Original hidden size / the twin's."""
    numbers: tuple[Shrunk, ...]
    """Every number that was looked at, those that were kept too."""
    layers: tuple[int, ...]
    """Layer of the original that each layer stands for."""
    names: str
    """Where the names of the tensors are from: the release's headers, its card, the library's class or an estimate."""
    files: int
    """Files of tensors."""
    tensors: int
    """Tensors."""
    tensor_bytes: int
    """Bytes of all tensors."""
    parameters: int
    """Logical values of all weights."""
    seconds: float
    """What writing took."""
    notes: tuple[str, ...] = ()
    """What differs from the original beside numbers, one line each."""
