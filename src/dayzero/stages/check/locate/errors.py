"""How far values are apart, added up over sequences."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dayzero.runtime.substitution.places import Place
from dayzero.schema.located import Errors

FAR = sys.float_info.max
_TENTH = 0.1
Array = NDArray[Any]


@dataclass
class Tally:
    """Of one place; values are [rows, ...]."""

    difference: float = 0.0
    length: float = 0.0
    along: float = 0.0
    row: float = 0.0
    by_channel: Array = field(default_factory=lambda: np.zeros(0))
    channels: Array = field(default_factory=lambda: np.zeros(0))
    flips: int = 0

    def add(self, values: Array, reference: Array) -> None:
        """Another sequence. Where both are not numbers, or infinite alike, they agree."""
        if not reference.size:
            return
        x = values.reshape(len(values), -1).astype(np.float64)
        r = reference.reshape(len(reference), -1).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.where((x == r) | (np.isnan(x) & np.isnan(r)), 0.0, x - r)
        r = np.where(np.isfinite(r), r, 0.0)
        apart = np.where(np.isfinite(apart), apart, np.inf)
        with np.errstate(invalid="ignore", over="ignore"):
            rows, norms = (apart**2).sum(1), (r**2).sum(1)
            self.difference += float(rows.sum())
            self.length += float(norms.sum())
            along = float((np.where(np.isfinite(apart), apart, 0.0) * r).sum())
            self.along += along
            least = _TENTH**2 * norms.mean()
            self.row = max(self.row, float(np.sqrt(_ratio(rows, np.maximum(norms, least)).max())))
            if len(self.channels) != r.shape[1]:
                self.by_channel, self.channels = np.zeros(r.shape[1]), np.zeros(r.shape[1])
            self.by_channel += (apart**2).sum(0)
            self.channels += (r**2).sum(0)

    @property
    def errors(self) -> Errors:
        """Of all that was added."""
        least = _TENTH**2 * self.channels.mean() if len(self.channels) else 0.0
        ratios = _ratio(self.by_channel, np.maximum(self.channels, least))
        channel = np.sqrt(ratios.max()) if len(ratios) else 0.0
        overall = float(np.sqrt(_ratio(np.array(self.difference), np.array(self.length))))
        scale = abs(self.along) / self.length if self.length else 0.0
        return Errors(overall=_finite(overall), row=_finite(self.row), channel=_finite(float(channel)),
                      scale=_finite(scale), flips=self.flips)


def sets(place: Place, values: Array) -> Array:
    """[positions, k], sorted, of what is chosen for each token. Of positions those that are still to come count as the
    token's own, which every mask leaves it: where there are fewer than k, any are taken beside them."""
    chosen = values.reshape(len(values), -1)
    if place.what == "output":
        chosen = np.minimum(chosen, np.arange(len(chosen))[:, None])
    return np.asarray(np.sort(chosen, axis=1))


def _ratio(over: Array, under: Array) -> Array:
    """0 where both are, infinite where only the second is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(over == 0, 0.0, over / under)


def _finite(value: float) -> float:
    return value if np.isfinite(value) else FAR


def largest(several: list[Errors]) -> Errors:
    """Field by field."""
    return Errors(**{name: max((getattr(each, name) for each in several), default=0)
                     for name in Errors.__struct_fields__})
