"""Who takes which place in the next epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dayzero.runtime.mesh import refusal
from dayzero.schema import Layout


def seated(layout: Layout, before: Mapping[int, int], spares: Sequence[int]) -> dict[int, int] | None:
    """{rank: member} with spares in the places that are empty; None: there are too few of them. `before`: {rank:
    member} of those that are left of the epoch that ended, in the same layout."""
    empty = [rank for rank in range(layout.world_size) if rank not in before]
    if len(spares) < len(empty):
        return None
    return {**before, **dict(zip(empty, spares, strict=False))}


def reduced(layout: Layout) -> tuple[Layout, ...]:
    """Layouts for fewer ranks that come of a layout when its degrees are reduced, those that take the most first; among
    these, first those in which most of what ranks hold stays of use: fewer replicas, then fewer stages, then less tp.
    """
    found = set()
    for tp in _divisors(layout.tp):
        for pp in range(1, layout.pp + 1):
            for dp in range(1, layout.dp + 1):
                ep = max(each for each in _divisors(layout.ep) if tp * dp % each == 0)
                one = Layout(tp=tp, pp=pp, dp=dp, ep=ep)
                if one.world_size < layout.world_size and not refusal(one):
                    found.add(one)
    return tuple(sorted(found, key=lambda one: (-one.world_size, -one.tp, -one.pp)))


def _divisors(degree: int) -> list[int]:
    return [each for each in range(1, degree + 1) if degree % each == 0]


def smaller(layouts: Sequence[Layout], members: int) -> Layout | None:
    """The first layout, in the order of the plan, that so few members can fill; None: there is none."""
    return next((layout for layout in layouts if layout.world_size <= members), None)


def reseated(layout: Layout, old: Layout, before: Mapping[int, int], spares: Sequence[int]) -> dict[int, int]:
    """{rank: member} of another layout. Members of the same stage and part stay together as far as they can, so that
    what they have read is of use again; the others come after them."""
    def part(rank: int, of: Layout) -> tuple[float, float]:
        inner = rank % (of.tp * of.pp)
        return (inner // of.tp / of.pp, inner % of.tp / of.tp)

    left = dict(before)
    made: dict[int, int] = {}
    for rank in range(layout.world_size):
        wanted = part(rank, layout)
        near = min(left, key=lambda one: sum(abs(a - b) for a, b in zip(part(one, old), wanted, strict=True)),
                   default=None)
        if near is not None:
            made[rank] = left.pop(near)
    rest = [*spares]
    return {rank: made[rank] if rank in made else rest.pop(0) for rank in range(layout.world_size)}
