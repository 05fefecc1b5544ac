"""Coverage: where each tensor of a release goes in the model that a library's code declares, and what stays empty."""

from __future__ import annotations

from .base import Noun


class Destination(Noun, frozen=True, kw_only=True):
    """Tensors of one pattern that go to parameters of one pattern, or nowhere."""

    pattern: str
    """Name in the files, with `{L}` and `{E}`."""
    layers: tuple[int, ...]
    """Layers of the tensors; empty: they are in none."""
    tensors: int
    """How many tensors."""
    parameter: str
    """Pattern of the parameter; empty: there is none."""
    reason: str = ""
    """Why it is right that there is none; empty: it is not."""


class Unfilled(Noun, frozen=True, kw_only=True):
    """Parameters of one pattern that get too little data, or none."""

    parameter: str
    """Pattern of the parameters."""
    layers: tuple[int, ...]
    """Layers of the parameters; empty: they are in none."""
    filled: float
    """Share of the values that get data, over all of these parameters."""


class Misshapen(Noun, frozen=True, kw_only=True):
    """Tensors of another shape than the parameter that they go to."""

    pattern: str
    """Name in the files."""
    file: tuple[int, ...]
    """Shape in the files."""
    declared: tuple[int, ...]
    """Shape of the parameter."""
    layers: tuple[int, ...]
    """Layers of the tensors; empty: they are in none."""


class Doubled(Noun, frozen=True, kw_only=True):
    """Parameters for which the files hold more than one tensor."""

    parameter: str
    """Pattern of the parameters."""
    patterns: tuple[str, ...]
    """Names in the files, sorted."""
    layers: tuple[int, ...]
    """Layers of the parameters; empty: they are in none."""


class Coverage(Noun, frozen=True, kw_only=True):
    """The ledger of weights: every tensor of the files, every parameter that the code declares."""

    source: str = ""
    """Whose code: library, version and class."""
    destinations: tuple[Destination, ...] = ()
    """All tensors."""
    unfilled: tuple[Unfilled, ...] = ()
    """Parameters that are not filled completely."""
    misshapen: tuple[Misshapen, ...] = ()
    """Tensors that do not fit."""
    doubled: tuple[Doubled, ...] = ()
    """Parameters that two tensors claim; which of them is loaded last is chance."""
    parameters: int = 0
    """Parameters (tensors, not values) that the code declares."""
    impossible: str = ""
    """Why there is no ledger; empty: there is one."""

    @property
    def tensors(self) -> int:
        """Tensors in the files."""
        return sum(line.tensors for line in self.destinations)

    @property
    def placed(self) -> int:
        """Tensors with a destination, or with a reason to have none."""
        return sum(line.tensors for line in self.destinations if line.parameter or line.reason)
