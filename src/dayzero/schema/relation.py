"""Relations: what has to stay the same, or change in a known way, when a model is asked or built in another way."""

from __future__ import annotations

from .base import Noun

DRAWN, DRAWN_STEPS = "tokens that are drawn with fixed seeds", 12
"""Name of the relation over layouts; tokens of each sequence."""


class Relations(Noun, frozen=True, kw_only=True):
    """What to try; sizes are chosen from the config (docs/check.md)."""

    dtype: str
    """bf16, f16 or f32."""
    vocabulary: int
    """Ids from 0 that may be asked."""
    lengths: dict[str, int]
    """What ends or begins at a length, such as `window of sliding` -> prompt length beyond it, in tokens."""
    shift: int
    """Positions by which all may be moved without reaching a length at which the rotary table changes; 0: none."""
    factors: tuple[str, ...] = ()
    """Config keys that are factors on the routed experts' output."""
    groups: int = 1
    """Groups of experts that a router chooses from first."""
    only: tuple[str, ...] = ()
    """Which groups of relations; empty: all."""


class Held(Noun, frozen=True, kw_only=True):
    """One relation that was tried."""

    name: str
    """What was changed, and what has to follow."""
    observed: float
    """Largest relative L2 of a position's logits, or of a module's output; the largest float for what is no number."""
    tolerance: float
    """Largest that passes; 0: bits are compared."""
    source: str
    """Where the tolerance comes from."""
    detail: str = ""
    """More about it, for people."""
    skipped: str = ""
    """Why it was not tried; empty when it was."""
    tokens: tuple[int, ...] = ()
    """What was drawn, to be compared with other layouts'."""
    margins: tuple[float, ...] = ()
    """For each: by how much its score was above the next one's."""

    @property
    def passed(self) -> bool:
        """Whether it holds."""
        return not self.skipped and self.observed <= self.tolerance
