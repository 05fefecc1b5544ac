"""How long ranks take to send each other something, over a cluster seen as levels: devices of one switch, of a node, of
a rack, of all racks. Sizes of groups, bytes and strides may be numbers or arrays with one for each of many layouts.

The world is dealt out to groups of one shape in order, and all groups send at the same moment. m_l: members of a group
in one domain of level l (m_0 = 1), k_l = m_l / m_(l-1), a_l and b_l: the latency of a message and the bytes a second of
one device over level l. docs/numbers.md has the formulas with their sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dayzero.errors import TargetError
from dayzero.schema import Cluster, Link
from dayzero.schema.hardware import NO_NETWORK

Value = Any
"""A number, or an array of numbers."""


class Level(NamedTuple):
    """One level for one collective."""

    domain: int
    """Devices that one domain of it joins."""
    latency: float
    """Seconds of a message."""
    bandwidth: float
    """Bytes a second of one device while all send."""
    measured: bool
    """Whether the bandwidth is what the collective reached."""
    called: bool
    """Whether the latency is not what the collective reached."""
    far: bool
    """Whether it is between nodes."""
    missing: tuple[str, str] | None = None
    """What is wrong and what to do where nothing joins so many devices."""


class Group(NamedTuple):
    """Ranks that work together: `copies` times, `distance` apart, every `stride`-th of `ranks` x `stride` ranks."""

    ranks: Value
    """Ranks beside each other,"""
    stride: Value = 1
    """so many apart,"""
    copies: Value = 1
    """and as often,"""
    distance: Value = 1
    """so many apart."""

    @property
    def size(self) -> Value:
        """Ranks in all."""
        return self.ranks * self.copies

    def within(self, domain: int) -> Value:
        """Members in one domain: where groups do not fit in evenly, the most that are together wherever one lies."""
        return (np.gcd(self.ranks, np.maximum(domain // self.stride, 1))
                * np.gcd(self.copies, np.maximum(domain // self.distance, 1)))


class Calls(NamedTuple):
    """What counts where the time of a call is known as a whole, whatever its size."""

    called: Value
    """1: links take part of which only that is known."""
    doublings: Value
    """Doublings of the ranks over such links."""
    far: Value
    """1: one of them is between nodes."""


class Seconds(NamedTuple):
    """What a collective takes, by cause."""

    waiting: Value
    """For messages, whatever their size."""
    sending: Value
    """For bytes, at the stated bandwidth of links that were not measured."""
    reached: Value
    """For bytes, at what was measured."""

    @property
    def total(self) -> Value:
        """All of it, links being as fast as they are said to be."""
        return self.waiting + self.sending + self.reached

    def times(self, factor: Value) -> Seconds:
        """So many of them one after another."""
        return Seconds(*(part * factor for part in self))


NONE = Seconds(0.0, 0.0, 0.0)
"""Nothing is sent."""


@dataclass(frozen=True)
class Fabric:
    """The levels of a cluster as one collective meets them, innermost first; each domain is whole domains below it."""

    levels: tuple[Level, ...]

    def members(self, group: Group) -> list[Value]:
        """m_0, m_1 ... of a group. Raises TargetError where it needs what nothing joins."""
        together: list[Value] = [np.ones_like(group.size)]
        for number, level in enumerate(self.levels):
            last = number == len(self.levels) - 1
            together.append(np.maximum(group.size if last else group.within(level.domain), together[-1]))
            if level.missing and np.any(together[-1] > together[-2]):
                raise TargetError(*level.missing)
        return together

    def calls(self, group: Group) -> Calls:
        """What a collective of a group counts as."""
        called, doublings, far = np.zeros_like(group.size, dtype=bool), 0.0, np.zeros_like(group.size, dtype=bool)
        for level, (before, after) in zip(self.levels, pairwise(self.members(group)), strict=True):
            if level.called:
                called, far = called | (after > before), far | ((after > before) & level.far)
                doublings = doublings + np.log2(after / before)
        return Calls(1.0 * called, doublings, 1.0 * far)


def fabric(cluster: Cluster, collective: str, *, latency: bool = True) -> Fabric:
    """The levels of a cluster for one of `COLLECTIVES`. `latency` False: messages over links that were not measured
    cost nothing, because calls are counted in another way."""
    return Fabric(tuple(_level(link, domain, collective, latency, domain > cluster.devices_per_node, missing)
                        for link, domain, missing in _stated(cluster)))


def _stated(cluster: Cluster) -> list[tuple[Link | None, int, tuple[str, str] | None]]:
    """(link, devices of a domain, what is wrong where there is no link) of all levels, the last joining all."""
    node, world = cluster.devices_per_node, cluster.world_size
    unstated = NO_NETWORK if cluster.network is None else (
        f"no level of the network joins all {world} devices",
        "leave `devices` out of the last [[cluster.network]], or add a level above it")
    found: list[tuple[Link | None, int, tuple[str, str] | None]] = []
    reach = 1
    between = (cluster.network, *cluster.beyond) if cluster.network else ()
    inside = (cluster.device.links, node, cluster.device.unlinked(node))
    for links, most, missing in (inside, (between, world, unstated)):
        for link in links:
            domain = min(link.devices or most, most)
            if domain > reach:
                found.append((link, domain, None))
                reach = domain
        if reach < most:
            found.append((None, most, missing))
            reach = most
    return found


def _level(link: Link | None, domain: int, collective: str, latency: bool, far: bool,
           missing: tuple[str, str] | None) -> Level:
    if link is None:
        return Level(domain, 0.0, 1.0, measured=False, called=False, far=far, missing=missing)
    reached, stated = link.collectives.get(collective), link.latency if latency else 0.0
    if reached is None:
        return Level(domain, stated, link.bandwidth / link.shared_by, measured=False, called=True, far=far)
    own = stated if reached.latency is None else reached.latency
    return Level(domain, own, reached.bandwidth, measured=True, called=reached.latency is None, far=far)


def all_reduce(over: Fabric, group: Group, size: Value) -> Seconds:
    """Add up `size` bytes of each rank: level by level, as a ring through all, or over two trees; the fastest."""
    together, ranks = over.members(group), group.size
    return _fastest(
        _by_level(over, together, size).times(2),
        _through(over, together, 2 * (ranks - 1), True, 2 * (ranks - 1) / ranks * size),
        _through(over, together, 2, False, 2.0 * size))


def all_gather(over: Fabric, group: Group, size: Value) -> Seconds:
    """Each rank gets all `size` bytes, of which it had its part: level by level, or as a ring; the faster."""
    together, ranks = over.members(group), group.size
    return _fastest(_by_level(over, together, size),
                    _through(over, together, ranks - 1, True, (ranks - 1) / ranks * size))


def reduce_scatter(over: Fabric, group: Group, size: Value) -> Seconds:
    """Each rank gets its part of the sum of `size` bytes of all: an all-gather backwards."""
    return all_gather(over, group, size)


def all_to_all(over: Fabric, group: Group, size: Value) -> Seconds:
    """Each rank sends an equal part of its `size` bytes to every rank."""
    together, ranks = over.members(group), group.size
    parts = [(after - before) / ranks * size for before, after in pairwise(together)]
    return _sum(over, together, parts)


def dispatch(over: Fabric, group: Group, size: Value, visits: Value, imbalance: float = 1.0) -> Seconds:
    """Rows, `size` bytes of each rank, each to `visits` ranks chosen evenly, with `imbalance` times as many to the
    fullest, which never gets more than all; back (combine) it is the same. A row goes once to each domain with a rank
    that it visits, and there on."""
    together, ranks = over.members(group), group.size
    parts = []
    for before, after in pairwise(together):
        groups = ranks / before
        visited = groups * (1 - (1 - 1 / groups) ** visits)
        parts.append(size * np.minimum(imbalance, ranks) * visited * (1 - before / after))
    return _sum(over, together, parts)


def point_to_point(over: Fabric, group: Group, size: Value) -> Seconds:
    """`size` bytes from each rank of a group to the next; where domains end inside of the group, the pair that lies
    across the widest edge decides."""
    together, worst = over.members(group), NONE
    for level, (before, after) in zip(over.levels, pairwise(together), strict=True):
        seconds = size / level.bandwidth
        this = Seconds(level.latency, *((0.0, seconds) if level.measured else (seconds, 0.0)))
        worst = Seconds(*(np.where(after > before, new, old) for new, old in zip(this, worst, strict=True)))
    return worst


def broadcast(over: Fabric, group: Group, size: Value) -> Seconds:
    """`size` bytes of one rank to all others, each of which sends them on: a tree, and what is large in pieces."""
    together, worst = over.members(group), NONE
    waiting = _sum(over, together, [0.0] * len(over.levels)).waiting
    for level, (before, after) in zip(over.levels, pairwise(together), strict=True):
        seconds = size / level.bandwidth
        this = Seconds(waiting, *((0.0, seconds) if level.measured else (seconds, 0.0)))
        better = (after > before) & (seconds > worst.sending + worst.reached)
        worst = Seconds(*(np.where(better, new, old) for new, old in zip(this, worst, strict=True)))
    return Seconds(waiting, worst.sending, worst.reached)


def exposed(sending: Value, computing: Value, overlap: float) -> Value:
    """Seconds of sending that are not hidden: a share of it can be, as long as there is something to compute."""
    return sending - np.minimum(overlap * sending, computing)


def _sum(over: Fabric, together: Sequence[Value], parts: Sequence[Value]) -> Seconds:
    """One level after another: log2(k_l) messages, and the bytes of the level."""
    waiting, sending, reached = 0.0, 0.0, 0.0
    for level, (before, after), part in zip(over.levels, pairwise(together), parts, strict=True):
        waiting = waiting + np.log2(after / before) * level.latency
        seconds = part / level.bandwidth
        sending, reached = (sending, reached + seconds) if level.measured else (sending + seconds, reached)
    return Seconds(waiting, sending, reached)


def _by_level(over: Fabric, together: Sequence[Value], size: Value) -> Seconds:
    """Halving, inwards to outwards: at level l each rank still has 1 / m_(l-1) of the bytes, and sends (k_l - 1) / k_l
    of that."""
    parts = [(1 / before - 1 / after) * size for before, after in pairwise(together)]
    return _sum(over, together, parts)


def _through(over: Fabric, together: Sequence[Value], messages: Value, slowest: bool, sent: Value) -> Seconds:
    """Pipelined through all levels: the level with the least bandwidth for all members of a domain below it decides.
    `slowest`: so many messages at the latency of the slowest level; else so many for each doubling of each."""
    pace, latency, depth = 0.0, 0.0, 0.0
    measured: Value = False
    for level, (before, after) in zip(over.levels, pairwise(together), strict=True):
        used = after > before
        each = used / (level.bandwidth * before)
        measured = np.where(each > pace, level.measured, measured)
        pace = np.maximum(pace, each)
        latency = np.maximum(latency, used * level.latency)
        depth = depth + np.log2(after / before) * level.latency
    seconds = sent * pace
    return Seconds(messages * (latency if slowest else depth), np.where(measured, 0.0, seconds),
                   np.where(measured, seconds, 0.0))


def _fastest(*ways: Seconds) -> Seconds:
    """Of several ways the fastest, element by element."""
    best = ways[0]
    for way in ways[1:]:
        better = way.total < best.total
        best = Seconds(*(np.where(better, new, old) for new, old in zip(way, best, strict=True)))
    return best
