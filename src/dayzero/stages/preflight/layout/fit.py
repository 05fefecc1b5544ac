"""Does the model fit: the fullest device under every layout asked for, or under the best one of the whole cluster."""

from __future__ import annotations

from dataclasses import dataclass

from dayzero.placement import blockers, fullest_device, layouts, pipeline_stages
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


def whole_cluster(model: ModelSpec, target: Target) -> list[Layout]:
    """Layouts that use every device and that no rule forbids."""
    return [layout for layout in layouts(target.cluster.world_size, model.mixes_experts)
            if not blockers(model, layout, target.engine)]


def least_forbidden(model: ModelSpec, target: Target) -> Layout:
    """Of the layouts that use every device the one that breaks the fewest rules."""
    return min(layouts(target.cluster.world_size, model.mixes_experts),
               key=lambda layout: len(blockers(model, layout, target.engine)))


def fits(model: ModelSpec, target: Target) -> tuple[Fit, ...]:
    """One entry for each layout of the target that has layers for all its stages; without layouts one for the layout
    of the whole cluster that needs least, or no entry when none is legal."""
    usable = target.cluster.usable_bytes
    if target.layouts:
        return tuple(Fit(layout=layout, causes=fullest_device(model, layout, target), usable=usable, searched=False)
                     for layout in target.layouts if not any(pipeline_stages(model, layout, target.engine)))
    found = (Fit(layout=layout, causes=fullest_device(model, layout, target), usable=usable, searched=True)
             for layout in whole_cluster(model, target))
    best = min(found, key=lambda fit: fit.total, default=None)
    return (best,) if best else ()
