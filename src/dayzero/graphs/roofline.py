"""Which rows cost most, and what bounds each on a device: max(operations / matrix rate, bytes / memory bandwidth)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from dayzero.errors import TargetError
from dayzero.schema import Device, OpGraph
from dayzero.schema.graph import PhaseName

from .items import Item, items

By = Literal["flops", "bytes", "time"]


class Spot(NamedTuple):
    """A row and its part in its phase."""

    item: Item
    """The row."""
    share: float
    """Of the phase's total of what is ranked by: 0 to 1."""
    seconds: float | None
    """Least time on the device; None: no device, or it states no rate for the dtype."""
    bound: Literal["compute", "memory", ""]
    """What bounds it: the matrix rate or the memory; empty with `seconds` None."""


def balance(device: Device, dtype: str) -> float | None:
    """Operations for each byte at which matrix rate and memory bandwidth take equally long; None: no rate stated."""
    name = device.computes_in(dtype)
    return None if name is None else device.flops[name] / device.memory_bandwidth


def bound_seconds(flops: float, size: float, dtype: str, device: Device) -> float | None:
    """The roofline bound in seconds; None where there are operations and the device states no rate for the dtype."""
    try:
        compute = flops / device.rate(dtype) if flops else 0.0
    except TargetError:
        return None
    return max(compute, size / device.memory_bandwidth)


def spots(graph: OpGraph, phase: PhaseName, by: By = "flops", device: Device | None = None,
          top: int | None = None) -> tuple[Spot, ...]:
    """The rows of a phase that cost most, dearest first; those that cost nothing are left out."""
    rows = [(item, None if device is None else bound_seconds(item.flops, item.bytes, item.dtype, device))
            for item in items(graph, phase)]
    costs = [(seconds or 0.0) if by == "time" else float(getattr(item, by)) for item, seconds in rows]
    total = sum(costs)
    ranked = sorted((pair for pair in zip(costs, rows, strict=True) if pair[0]), key=lambda pair: -pair[0])
    return tuple(Spot(item, cost / total, seconds, _bound(item, seconds, device))
                 for cost, (item, seconds) in ranked[:top])


def _bound(item: Item, seconds: float | None, device: Device | None) -> Literal["compute", "memory", ""]:
    if device is None or seconds is None:
        return ""
    return "memory" if item.bytes / device.memory_bandwidth >= seconds else "compute"
