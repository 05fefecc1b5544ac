"""The layouts that there are for a number of devices; which of them a model can take is for `legality` to say."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

from dayzero.schema import Layout


def divisors(number: int, most: int | None = None) -> list[int]:
    """Divisors up to `most`, rising."""
    small = [degree for degree in range(1, isqrt(number) + 1) if number % degree == 0]
    every = [*small, *(number // degree for degree in reversed(small) if degree * degree < number)]
    return every if most is None else [degree for degree in every if degree <= most]


def layouts(world_size: int, has_experts: bool) -> Iterator[Layout]:
    """Every tp * pp * dp that makes the world size; with experts also every ep that is made of whole tp groups or of
    equal parts of one."""
    for tp in divisors(world_size):
        for pp in divisors(world_size // tp):
            dp = world_size // (tp * pp)
            for ep in divisors(tp * dp) if has_experts else [1]:
                if tp % ep == 0 or ep % tp == 0:
                    yield Layout(tp=tp, pp=pp, dp=dp, ep=ep)
