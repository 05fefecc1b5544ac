"""Operators of the trace as table rows, and the hot spots among them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from dayzero.errors import TargetError
from dayzero.schema import Device, OpCall, OpGraph
from dayzero.units import format_bytes, format_flops, format_seconds


class Row(NamedTuple):
    """Equal calls of one operator; with layers grouped, of the same module in all layers."""

    op: str
    """Operator."""
    kind: str
    """What an engineer calls it."""
    module: str
    """Dotted path; `*` for the numbers of grouped layers."""
    calls: int
    """How often."""
    shapes: str
    """Shapes in and out."""
    dtype: str
    """dtype of the first tensor."""
    flops: int
    """Of all calls together."""
    bytes: int
    """Of all calls together, no fusion."""
    seconds: float | None
    """Roofline bound on one device of the target; None: the device states no rate."""
    phase: str
    """prefill or decode."""


def rows(graph: OpGraph, device: Device, *, grouped: bool) -> list[Row]:
    """The operator table. With `grouped`, the same call in several layers is one row."""
    return [Row(call.op, call.kind, call.module, call.count, call.shapes, call.dtype, call.flops, call.bytes,
                _bound(call, device), call.phase) for call in (graph.grouped() if grouped else graph.operators)]


def hot_spots(table: Iterable[Row], phase: str, top: int = 8) -> list[tuple[Row, float]]:
    """The rows of a phase with the longest bound, and each one's share of the phase."""
    of_phase = [row for row in table if row.phase == phase and row.seconds is not None]
    total = sum(row.seconds or 0.0 for row in of_phase)
    ranked = sorted(of_phase, key=lambda row: -(row.seconds or 0.0))[:top]
    return [(row, (row.seconds or 0.0) / total) for row in ranked] if total else []


def table_data(table: Iterable[Row]) -> list[list[Any]]:
    """Rows for the page: values in the order of `Row`, then the texts of flops, bytes and seconds."""
    return [[*row, format_flops(row.flops), format_bytes(row.bytes),
             "" if row.seconds is None else format_seconds(row.seconds)] for row in table]


def _bound(call: OpCall, device: Device) -> float | None:
    """max(flops / matrix rate, bytes / memory bandwidth)."""
    try:
        compute = call.flops / device.rate(call.dtype) if call.flops else 0.0
    except TargetError:
        return None
    return max(compute, call.bytes / device.memory_bandwidth)
