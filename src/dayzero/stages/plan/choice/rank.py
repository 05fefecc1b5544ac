"""The order of layouts: those that keep to the limits by throughput, then those that fit by how far they are over, then
the others by what they need."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dayzero.arrays import Value
from dayzero.placement.many import Layouts
from dayzero.schema import Limits

from .limits import excess


class Columns(Protocol):
    """What is known of many layouts, a row for each."""

    layouts: Layouts
    fits: Value
    need_bytes: Value
    max_sequences: Value
    ttft_s: Value
    tpot_s: Value
    tokens_per_s: Value


def limited(found: Columns) -> dict[str, Value]:
    """The columns that limits are about."""
    return {"ttft_s": found.ttft_s, "tpot_s": found.tpot_s, "devices": found.layouts.world_size}


def ranked(found: Columns, limits: Limits) -> Value:
    """Positions, best first: throughput, or by how far limits are broken, and time to the first token count to three
    digits; then the plainer layout is first, and then the one that needs less memory."""
    over = excess(limits, limited(found))
    group = np.where(~np.asarray(found.fits, dtype=bool), 2, np.where(over <= 1, 0, 1))
    first = np.choose(group, [-digits(found.tokens_per_s), digits(over), found.need_bytes])
    second = np.where(group == 2, 0.0, digits(found.ttft_s))
    some = found.layouts
    partly = (some.ep > 1) & (some.ep < some.tp * some.dp)
    special = (some.cp > 1) * 1 + (some.attention_tp > 0) + partly
    return np.lexsort((found.need_bytes, special, second, first, group))


def digits(values: Value, kept: int = 3) -> Value:
    """Positive values to so many digits; infinite ones are very large."""
    known = np.clip(np.asarray(values, dtype=np.float64), 1e-300, 1e300)
    step = 10.0 ** (np.floor(np.log10(known)) - kept + 1)
    return np.round(known / step) * step
