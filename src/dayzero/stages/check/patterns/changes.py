"""What was done to the values: a factor, one for each channel or row, an offset, a rounding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dayzero.floats import cast
from dayzero.schema.located import Pattern

from .facts import Array, Difference

_NEAR = 0.02
_OWN = ((0, "scale of channels", "each channel has a factor of its own: scales of rows of a weight, or the weight of a "
         "norm"),
        (1, "scale of rows", "each token has a factor of its own: a norm, a routing weight or a scale of activations"))
_DTYPES = (("BF16", "bf16"), ("F16", "f16"))


def changes(difference: Difference) -> Iterator[Pattern]:
    """Patterns of the values themselves."""
    yield from _factor(difference)
    yield from _factors(difference)
    yield from _offset(difference)
    yield from _rounding(difference)


def _factor(difference: Difference) -> Iterator[Pattern]:
    length = float((difference.r**2).sum())
    if not length:
        return
    factor = float((difference.x * difference.r).sum()) / length
    share = difference.left(factor * difference.r)
    if abs(factor) < 1e-9:
        if share > 0.99:
            yield Pattern(name="zero", explained=share, words="all values are zero")
        return
    words = f"all values are {factor:.6g} times what they should be"
    if abs(factor + 1) < _NEAR:
        yield Pattern(name="sign", explained=share, words="all values have the other sign")
        return
    yield Pattern(name="scale", explained=share, words=f"{words}: a factor that is left out, applied twice or wrong")


def _factors(difference: Difference) -> Iterator[Pattern]:
    """One for each channel or row; each takes a value of freedom away, which is not counted as explained."""
    for axis, name, words in _OWN:
        along = (difference.x * difference.r).sum(axis)
        length = (difference.r**2).sum(axis)
        factors = np.divide(along, length, out=np.ones_like(along), where=length > 0)
        if np.ptp(factors) < 1e-4:
            continue
        made = difference.r * (factors if axis == 0 else factors[:, None])
        freedom = 1.0 / max(1, difference.d.shape[axis])
        share = (difference.left(made) - freedom) / (1 - freedom) if freedom < 1 else 0.0
        yield Pattern(name=name, explained=max(0.0, share), words=f"{words} (from {factors.min():.4g} to "
                      f"{factors.max():.4g})")


def _offset(difference: Difference) -> Iterator[Pattern]:
    count = len(difference.d)
    if count < 2:
        return
    mean = difference.d.mean(0)
    freedom = 1.0 / count
    share = (difference.left(difference.r + mean) - freedom) / (1 - freedom)
    yield Pattern(name="offset", explained=max(0.0, share), words="the same vector is added to every token: a bias "
                  "that is dropped, added twice or of somebody else")


def _rounding(difference: Difference) -> Iterator[Pattern]:
    values = difference.r.astype(np.float32)
    for dtype, name in _DTYPES:
        rounded = cast(values, dtype).astype(np.float64)
        share = difference.left(rounded)
        if share > 0 and _all_in(difference.x, dtype):
            yield Pattern(name="rounding", explained=share, words=f"values are rounded to {name}")
            return


def _all_in(values: Array, dtype: str) -> bool:
    single = values.astype(np.float32)
    return bool((cast(single, dtype).astype(np.float32) == single).all())
