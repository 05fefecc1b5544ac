"""Pairs and collectives, timed by every rank at the same moments. Needs torch.

Of every size each round times some calls after each other; how many is agreed from a first call, so that all of it fits
into the seconds that are allowed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from dayzero.backends.rates import settle
from dayzero.schema.hardware import COLLECTIVES

from .found import Call
from .levels import Pair, groups, pairs
from .world import World

ROUNDS = 5
_SIZES = tuple(1 << power for power in range(10, 25, 2))
"""Of messages in the host's memory: 1 KiB to 16 MiB."""
_LARGER = (1 << 26, 1 << 28)
"""Beside them in an accelerator's: 64 and 256 MiB."""
_ITEM = 4
"""Bytes of a value."""
_MOST_CALLS, _QUICK_CALLS, _QUICK = 200, 20, 1e-3
"""Of one size in a round; at least, of calls that take less than so many seconds."""
_PAIR = {"small": (1 << 10, 20), "large": (1 << 22, 4)}
"""Bytes, and round trips, of the messages between pairs."""
Group = Any
"""A process group."""


def measure_pairs(world: World, on_host: int) -> dict[tuple[int, int], Pair]:
    """What messages between the pairs that tell levels apart take, one pair at a time; the quickest of several."""
    found = {}
    for first, second in pairs(world.ranks, on_host):
        times = []
        for size, trips in _PAIR.values():
            buffer = torch.zeros(size, dtype=torch.uint8, device=world.memory)
            mine = min((_trip(world, buffer, first, second) for _ in range(trips)), default=0.0)
            times.append(world.most(mine))
        found[first, second] = Pair(*times)
    return found


def _trip(world: World, buffer: torch.Tensor, first: int, second: int) -> float:
    """Seconds of a message there and back, halved; 0 on ranks that only look on."""
    if world.rank not in (first, second):
        return 0.0
    start = time.perf_counter()
    there, back = (dist.send, dist.recv) if world.rank == first else (dist.recv, dist.send)
    peer = second if world.rank == first else first
    there(buffer, peer)
    back(buffer, peer)
    settle(world.memory)
    return (time.perf_counter() - start) / 2


def measure_levels(world: World, domains: tuple[int, ...], seconds: float) -> tuple[list[Call], dict[str, str]]:
    """(all collectives over all levels, what cannot be measured -> why)."""
    sizes = _SIZES if world.memory.type == "cpu" else _SIZES + _LARGER
    each = seconds / (len(domains) * len(COLLECTIVES) * len(sizes) * ROUNDS)
    calls: list[Call] = []
    missing: dict[str, str] = {}
    for number, (below, domain) in enumerate(zip((1, *domains), domains, strict=False)):
        split = groups(world.ranks, below, domain)
        mine = _own(world, split)
        for name in COLLECTIVES:
            reason = _works(world, name, mine)
            if reason:
                missing[f"{name} in domains of {domain}"] = reason
                continue
            calls += _measured(world, name, mine, sizes, each, Call(
                level=number, collective=name, ranks=domain // below, groups=len(split), size=0, seconds=[]))
    return calls, missing


def _own(world: World, split: list[list[int]]) -> Group:
    """This rank's group; every rank takes part in making all of them."""
    made = {tuple(ranks): dist.new_group(ranks) for ranks in split}
    return next(group for ranks, group in made.items() if world.rank in ranks)


def _works(world: World, name: str, group: Group) -> str:
    """Why the backend cannot do it; empty when it can. All ranks find the same; one that is lost is an error here."""
    reason = ""
    try:
        _body(world, name, group, 4096)()
        settle(world.memory)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        reason = str(error).splitlines()[0]
    world.meet()
    return reason


def _measured(world: World, name: str, group: Group, sizes: tuple[int, ...], each: float,
              about: Call) -> Iterator[Call]:
    """One collective in all sizes, round after round."""
    bodies = [_body(world, name, group, size) for size in sizes]
    times: list[list[float]] = [[] for _ in sizes]
    counts = [_calls(world.most(_timed(world, body, 3)), each) for body in bodies]
    for _ in range(ROUNDS):
        for body, count, found in zip(bodies, counts, times, strict=True):
            found.append(world.most(_timed(world, body, count)))
    trips = 2 if name == "point_to_point" else 1  # there and back
    for size, found in zip(sizes, times, strict=True):
        yield msgspec.structs.replace(about, size=_part(size, about.ranks) * about.ranks * _ITEM,
                                      seconds=[seconds / trips for seconds in found])


def _calls(seconds: float, each: float) -> int:
    """How many calls that take so long fit into `each` seconds; of quick ones so many that single delays matter little.
    """
    least = _QUICK_CALLS if seconds < _QUICK else 1
    return max(least, min(_MOST_CALLS, int(each / seconds)))


def _timed(world: World, body: Callable[[], Any], count: int) -> float:
    """Seconds of one call, of `count` after each other; one before brings the ranks together, which leave the barrier
    at different moments."""
    world.meet()
    body()
    settle(world.memory)
    start = time.perf_counter()
    for _ in range(count):
        body()
    settle(world.memory)
    return max((time.perf_counter() - start) / count, 1e-9)


def _body(world: World, name: str, group: Group, size: int) -> Callable[[], Any]:
    """One call of a collective of `size` bytes, see `Timing.sizes`."""
    ranks = dist.get_world_size(group)
    length = _part(size, ranks)
    whole, part = (torch.zeros(count, device=world.memory) for count in (length * ranks, length))
    bodies: dict[str, Callable[[], Any]] = {
        "all_reduce": partial(dist.all_reduce, whole, group=group),
        "all_gather": partial(dist.all_gather_single, whole, part, group=group),
        "reduce_scatter": partial(dist.reduce_scatter_single, part, whole, group=group),
        "all_to_all": partial(dist.all_to_all_single, torch.empty_like(whole), whole, group=group),
        "point_to_point": partial(_message, whole, dist.get_process_group_ranks(group), group),
    }
    return bodies[name]


def _part(size: int, ranks: int) -> int:
    """Values of one rank's part."""
    return max(1, size // _ITEM // ranks)


def _message(buffer: torch.Tensor, ranks: list[int], group: Group) -> None:
    """A round trip between the first two of a group; the others look on."""
    rank, (first, second) = dist.get_rank(), ranks[:2]
    if rank == first:
        dist.send(buffer, second, group=group)
        dist.recv(buffer, second, group=group)
    elif rank == second:
        dist.recv(buffer, first, group=group)
        dist.send(buffer, first, group=group)
