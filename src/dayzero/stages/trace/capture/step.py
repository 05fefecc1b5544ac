"""One run of a model that is traced: its phase and sizes. No torch."""

from __future__ import annotations

from typing import NamedTuple

from dayzero.schema.graph import PhaseName


class Step(NamedTuple):
    """A prefill, or a decode against a cache."""

    phase: PhaseName
    batch: int
    """Sequences."""
    tokens: int
    """New tokens of each."""
    context: int = 0
    """Tokens of each in the cache."""
