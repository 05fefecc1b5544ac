"""Verdict: whether what ran is the released model."""

from __future__ import annotations

from .base import Noun


class Check(Noun, frozen=True, kw_only=True):
    """One comparison with its tolerance."""

    name: str
    """What is compared, such as `tp=2: layers.3 addition, relative L2`."""
    tolerance: float
    """Largest value that passes."""
    source: str
    """Where the tolerance comes from."""
    observed: float
    """What was seen."""
    passed: bool
    """Whether it passes."""
    detail: str = ""
    """More about it, for people."""


class LayerError(Noun, frozen=True, kw_only=True):
    """How far one layer's output is from the reference."""

    layout: str
    """Layout that was compared."""
    place: str
    """`embedding`, `layers.N` (what the layer adds to its input), `norm` (what enters the head) or `logits`."""
    relative_l2: float
    """||x - r|| / ||r||; the largest float when a value is not a number."""
    max_abs: float
    """Largest absolute difference."""
    cosine: float
    """Cosine of the angle between the two, over all values."""
    tolerance: float
    """Largest relative L2 that passes."""


class Divergence(Noun, frozen=True, kw_only=True):
    """The first place that is not the released model."""

    layout: str
    """Layout in which it was seen; `the files` when the weights themselves differ."""
    place: str
    """As in `LayerError`; of weights that are in none of these, the name of the tensor."""
    layer: int | None
    """N, if it is a layer."""
    relative_l2: float
    """Error there."""
    before: float
    """Error just before."""
    tensor: str = ""
    """First tensor of the place whose weights differ; empty: they do not, or were not compared."""
    module: str = ""
    """Path of the module that made it, where modules were compared."""
    op: str = ""
    """What made it there: the module's kind, or between which places."""


class Verdict(Noun, frozen=True, kw_only=True):
    """All checks."""

    checks: tuple[Check, ...]
    """Every comparison."""
    layers: tuple[LayerError, ...]
    """Errors by layer, for each layout."""
    first_divergence: Divergence | None
    """First place out of tolerance; None: there is none."""
    reference: str
    """What it was compared with."""
    not_made: dict[str, str] = {}
    """Comparisons that could not be made, and why: what they would have shown is not proven."""
    needless: dict[str, str] = {}
    """Comparisons that there is nothing to make of, and why: they take nothing from the proof."""

    @property
    def passed(self) -> bool:
        """Whether every check passes, and there is one."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def proven(self) -> bool:
        """Whether every check passes and every comparison was made."""
        return self.passed and not self.not_made
