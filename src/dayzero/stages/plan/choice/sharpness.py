"""How sharp the order of a plan is: how many layouts lie within the interval of the first, and which kinds of layouts
no measurement stands behind."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dayzero.arrays import Value
from dayzero.data.covers import covers
from dayzero.placement.many import Layouts
from dayzero.schema import Cluster

from .pareto import Mask

FEW = 10
"""Measured points below which a kind of layouts counts as not measured."""
SAID = {"pp": "pp > 1", "cp": "cp > 1", "attention_tp": "attention_tp below tp"}
"""Kinds of layouts in words; the others are words already."""


def kinds(some: Layouts, cluster: Cluster) -> dict[str, Mask]:
    """Which rows are of each kind that data/covers.toml counts."""
    node = cluster.devices_per_node
    return {"pp": some.pp > 1, "cp": some.cp > 1, "attention_tp": some.attention_tp > 0,
            "tp over nodes": some.tp > node, "ep over nodes": (some.ep > 1) & (some.tp * some.dp > node)}


def sharpness(some: Layouts, rates: Value, least: float, cluster: Cluster, fitted: bool) -> tuple[str, ...]:
    """What is to be said of the order of layouts that fit; nothing where there is one. `rates`: their expected tokens a
    second; `least`: the low end of the first. `fitted`: whether times follow from figures that are fitted to measured
    points."""
    if len(some) < 2:
        return ()
    alike = np.asarray(rates) >= least
    told = (f"sharpness: {int(alike.sum()):,} of the {len(some):,} layouts that fit are expected to give at least the "
            "low end of the first; their order is within the error")
    bare = unmeasured(some, alike, cluster) if fitted else []
    if bare:
        told += (f"; of the {covers().points:,} measured points that the times are fitted to, none or few stand behind "
                 f"{', '.join(bare)}")
    return (told,)


def unmeasured(some: Layouts, alike: NDArray[np.bool_], cluster: Cluster) -> list[str]:
    """Kinds of layouts among those that are alike which few measured points have, each with how many."""
    known = covers().kinds
    return [f"{SAID.get(kind, kind)} ({known[kind]})" for kind, mask in kinds(some, cluster).items()
            if known[kind] < FEW and (mask & alike).any()]
