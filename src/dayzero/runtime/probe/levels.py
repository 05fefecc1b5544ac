"""Which ranks are near each other: levels from what messages between pairs take. Without torch.

Ranks are taken to be numbered node by node. A domain may end where a power of two does or where a host does; it ends
there if a pair across that edge is clearly slower than the pairs before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from dayzero.errors import UsageError

_SLOWER = 1.4
"""Times the seconds of a large message, or twice that for a small one, between a pair across the edge of a domain."""


class Pair(NamedTuple):
    """Seconds between two ranks."""

    small: float
    """Of a small message."""
    large: float
    """Of a large message."""


def edges(ranks: int, on_host: int) -> list[int]:
    """Sizes that a domain may have, smallest first: powers of two that divide the ranks of a host, and the ranks of a
    host times powers of two. Each is a whole number of those before, and the ranks are one of all."""
    powers = [2**power for power in range(ranks.bit_length())]
    sizes = {*(power for power in powers if on_host % power == 0), *(on_host * power for power in powers)}
    return sorted(size for size in sizes if size < ranks and ranks % size == 0)


def pairs(ranks: int, on_host: int) -> list[tuple[int, int]]:
    """The pairs to measure: across each edge the first ranks of two domains, and the ranks beside the edge."""
    found = []
    for edge in edges(ranks, on_host):
        found += [(0, edge), (edge - 1, edge)]
    return list(dict.fromkeys(found))


def domains(ranks: int, on_host: int, measured: Mapping[tuple[int, int], Pair]) -> tuple[int, ...]:
    """Ranks of one domain of each level, innermost first; the last is all of them. One rank has no level."""
    if ranks == 1:
        return ()
    found: list[int] = []
    before: Pair | None = None
    for edge in edges(ranks, on_host):
        across = [measured[pair] for pair in ((0, edge), (edge - 1, edge))]
        here = Pair(min(pair.small for pair in across), min(pair.large for pair in across))
        if before and (here.large > _SLOWER * before.large or here.small > 2 * _SLOWER * before.small):
            found.append(edge)
            before = here
        before = before or here
    return (*found, ranks)


def stated(sizes: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """The levels that a user states, up to all ranks; empty: none. Raises UsageError unless each is whole domains of
    the one before, and the ranks of the last."""
    if not sizes or ranks == 1:
        return ()
    every = (*(size for size in sizes if size < ranks), ranks)
    for below, size in pairwise((1, *every)):
        if size % below or size == below:
            raise UsageError(f"domains of {size} ranks are no whole domains of {below}",
                             "write --domains from the innermost level, such as 8,64")
    return every


def on_host(hosts: Sequence[str]) -> int:
    """Ranks of one host. Raises UsageError unless all have as many and ranks are numbered host by host."""
    count = hosts.count(hosts[0])
    if len(hosts) % count or any(len(set(hosts[start:start + count])) > 1 for start in range(0, len(hosts), count)) or (
            len(set(hosts)) * count != len(hosts)):
        raise UsageError(f"the ranks are not numbered host by host, with as many on each: {len(hosts)} ranks on "
                         f"{len(set(hosts))} hosts", "start as many ranks on every host, as torchrun does")
    return count


def groups(ranks: int, below: int, domain: int) -> list[list[int]]:
    """The groups of a level: in each of its domains the ranks at the same place of the domains below."""
    return [list(range(start + place, start + domain, below))
            for start in range(0, ranks, domain) for place in range(below)]
