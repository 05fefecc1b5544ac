"""What the readers of axes are given beside calls, and what they give."""

from __future__ import annotations

from typing import NamedTuple

from dayzero.schema import Attention, FeedForward

from .group import Axis

Read = tuple[str, str, dict[str, Axis]]
"""Operator, variant, axes."""


class Around(NamedTuple):
    """What is known about an operation besides its calls."""

    batch: int
    """Sequences of the run."""
    tokens: int
    """New tokens of each."""
    context: int
    """Tokens of each in the cache."""
    module: str
    """Path of the module."""
    module_type: str
    """Its class."""
    in_layer: bool
    """Whether it is in a decoder layer."""
    attention: Attention | None
    """The layer's attention; None: it is in no decoder layer."""
    feed_forward: FeedForward | None
    """The layer's feed-forward block; None: it is in no decoder layer."""
    window: int
    """Tokens that the model's sliding attentions see; 0: it has none."""
    top_k: int
    """Entries that the layer's indexer chooses for a query; 0: it has none."""
    vocab: int
    """Rows of the embedding."""
    item: float
    """Bytes of an activation."""
    weight_item: float
    """Bytes of a stored weight, scales included."""

    @property
    def rows(self) -> int:
        """New tokens of all sequences."""
        return self.batch * self.tokens
