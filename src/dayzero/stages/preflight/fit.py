"""Does the model fit: the fullest device under every layout asked for, or under the best one of the whole cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dayzero.placement import blockers, fullest_device
from dayzero.schema import Layout, ModelSpec, Target


@dataclass(frozen=True)
class Fit:
    """What the fullest device needs under one layout."""

    layout: Layout
    """The layout."""
    causes: dict[str, int]
    """Bytes by cause."""
    usable: int
    """Bytes that one device may use."""
    searched: bool
    """True: the best of all legal layouts; False: asked for."""

    @property
    def fixed(self) -> int:
        """Bytes that no workload can shrink: weights and process."""
        return self.causes["weights"] + self.causes["process"]

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(self.causes.values())


def _divisors(number: int) -> list[int]:
    return [degree for degree in range(1, number + 1) if number % degree == 0]


def whole_cluster(model: ModelSpec, target: Target) -> Iterator[Layout]:
    """Legal layouts that use every device; with experts spread over none, one tp group, or all ranks of a stage."""
    world = target.cluster.world_size
    has_experts = any(block.experts for block in model.feed_forwards.values())
    for tp in _divisors(world):
        for pp in _divisors(world // tp):
            dp = world // tp // pp
            for ep in sorted({1, tp, tp * dp}) if has_experts else [1]:
                layout = Layout(tp=tp, pp=pp, dp=dp, ep=ep)
                if pp <= len(model.layers) and not blockers(model, layout, target.engine):
                    yield layout


def fits(model: ModelSpec, target: Target) -> tuple[Fit, ...]:
    """One entry for each layout of the target; without layouts one for the layout of the whole cluster that needs
    least, or no entry when none is legal."""
    usable = target.cluster.usable_bytes
    if target.layouts:
        return tuple(Fit(layout=layout, causes=fullest_device(model, layout, target), usable=usable, searched=False)
                     for layout in target.layouts if layout.pp <= len(model.layers))
    found = (Fit(layout=layout, causes=fullest_device(model, layout, target), usable=usable, searched=True)
             for layout in whole_cluster(model, target))
    best = min(found, key=lambda fit: fit.total, default=None)
    return (best,) if best else ()
