"""Which decoder layers each pipeline stage holds."""

from __future__ import annotations

from itertools import accumulate, pairwise

from dayzero.errors import LayoutError
from dayzero.schema import ModelSpec


def split_layers(model: ModelSpec, pp: int, longer: str = "first") -> tuple[tuple[int, int], ...]:
    """(first layer, one past the last) of each of `pp` stages: contiguous, even by count. Where it does not come out
    even the `first` stages are one longer, as in the reference runtime; or those `before_last`; or the `last` stage
    takes all that is left. Raises LayoutError for more stages than layers."""
    count = len(model.layers)
    if pp > count:
        raise LayoutError(f"pp={pp} stages, but the model has {count} layers", f"take a pp of at most {count}")
    size, extra = divmod(count, pp)
    sizes = [size] * pp
    if longer == "last":
        sizes[-1] += extra
    else:
        begin = max(0, pp - 1 - extra) if longer == "before_last" else 0
        for stage in range(begin, begin + extra):
            sizes[stage] += 1
    return tuple(pairwise(accumulate(sizes, initial=0)))
