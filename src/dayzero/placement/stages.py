"""Which decoder layers each pipeline stage holds."""

from __future__ import annotations

from itertools import pairwise

from dayzero.errors import LayoutError
from dayzero.schema import ModelSpec


def split_layers(model: ModelSpec, pp: int) -> tuple[tuple[int, int], ...]:
    """(first layer, one past the last) of each of `pp` stages: contiguous, even by count, the first stages one longer
    where it does not come out even, as the reference runtime does. Raises LayoutError for more stages than layers."""
    count = len(model.layers)
    if pp > count:
        raise LayoutError(f"pp={pp} stages, but the model has {count} layers", f"take a pp of at most {count}")
    size, extra = divmod(count, pp)
    starts = [stage * size + min(stage, extra) for stage in range(pp + 1)]
    return tuple(pairwise(starts))
