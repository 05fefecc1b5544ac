"""What other hardware would change: each rate a fifth lower and higher, for the layouts that could come first.

Nothing is assumed about how a figure follows from a rate: the same evaluation runs again on a changed target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dayzero.schema import Change, Cluster, Layout, Limits, Link, Target
from dayzero.schema.hardware import LEAST_RATE

from .limits import within

FACTORS = (0.8, 1.2)
"""Of each rate."""
RESOURCES = ("memory bandwidth", "link bandwidth", "matrix rate")
ALIKE = 0.005
"""Share of the throughput below which a lead is no lead."""
Figures = Mapping[str, NDArray[Any]]
"""Columns by name, one row for each layout; `tokens_per_s` and what the limits are about is among them."""


def scaled(target: Target, resource: str, factor: float) -> Target:
    """The target with one of its rates times a factor; what was measured of links goes along."""
    cluster, device = target.cluster, target.cluster.device
    if resource == "memory bandwidth":
        device = msgspec.structs.replace(device, memory_bandwidth=_rate(device.memory_bandwidth, factor))
    elif resource == "matrix rate":
        device = msgspec.structs.replace(device, flops={
            name: _rate(rate, factor) for name, rate in device.flops.items()})
    else:
        device = msgspec.structs.replace(device, links=tuple(_faster(link, factor) for link in device.links))
        network = _faster(cluster.network, factor) if cluster.network else None
        beyond = tuple(_faster(link, factor) for link in cluster.beyond)
        cluster = msgspec.structs.replace(cluster, network=network, beyond=beyond)
    return msgspec.structs.replace(target, cluster=msgspec.structs.replace(cluster, device=device))


def _rate(rate: float, factor: float) -> float:
    """The changed rate; the least that there is stays what it is."""
    return max(LEAST_RATE, rate * factor)


def _faster(link: Link, factor: float) -> Link:
    collectives = {name: msgspec.structs.replace(reached, bandwidth=_rate(reached.bandwidth, factor))
                   for name, reached in link.collectives.items()}
    return msgspec.structs.replace(link, bandwidth=_rate(link.bandwidth, factor), collectives=collectives)


def joined(cluster: Cluster) -> bool:
    """Whether any link can matter."""
    return cluster.world_size > 1


def sensitivity(target: Target, layouts: Sequence[Layout], evaluate: Callable[[Target], Figures]) -> tuple[Change, ...]:
    """What each change does to the first of the layouts and to which one is first; none without layouts. `evaluate`
    gives the figures of the layouts, in their order, on a target."""
    if not layouts:
        return ()
    before = evaluate(target)
    made = []
    for resource in RESOURCES:
        for factor in FACTORS if resource != "link bandwidth" or joined(target.cluster) else ():
            after = evaluate(scaled(target, resource, factor))
            first, lead = _first(after, target.limits)
            made.append(Change(resource=resource, factor=factor, before=_row(before), after=_row(after),
                               first=layouts[first], lead=lead))
    return tuple(made)


def _first(figures: Figures, limits: Limits) -> tuple[int, float]:
    """(the row that ranks first, its lead on the first row): where any keep to the limits, one of these."""
    rates, keeps = figures["tokens_per_s"], within(limits, figures)
    first = int(np.argmax(np.where(keeps, rates, -np.inf) if keeps.any() else rates))
    if not rates[0]:
        return first, -1.0 if first else 0.0
    lead = float(rates[first] / rates[0] - 1)
    stays = keeps[0] or not keeps.any()
    return (0, 0.0) if stays and lead <= ALIKE else (first, lead)


def _row(figures: Figures) -> dict[str, float]:
    """Figures of the first layout; none where it does not keep up with what arrives."""
    if not figures["tokens_per_s"][0]:
        return {}
    return {name: float(column[0]) for name, column in figures.items() if name != "devices"}
