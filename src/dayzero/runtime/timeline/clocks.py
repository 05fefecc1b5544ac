"""Clocks of several processes: what a rank writes down about its own, and what to add to make it another's."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SAME_NS = 50_000_000
"""Two processes of a host read one monotonic clock; a larger distance to wall time means that it is not one."""

Marks = Mapping[tuple[str, int], int]
"""Moments of a rank in ns, by the name of the mark and how often it came before."""


def clock() -> dict[str, Any]:
    """This moment on both clocks, and which host's the monotonic one is."""
    host = _BOOT.read_text().strip() if _BOOT.exists() else platform.node()
    return {"perf_ns": time.perf_counter_ns(), "wall_ns": time.time_ns(), "host": host}


def shift(own: Mapping[str, Any], own_marks: Marks, other: Mapping[str, Any], other_marks: Marks) -> tuple[int, str]:
    """(ns to add to a time of `own` to have `other`'s, how that is known): one clock; marks that both set after the
    same barriers; wall clocks, which are as good as what sets them."""
    wall = (own["wall_ns"] - own["perf_ns"]) - (other["wall_ns"] - other["perf_ns"])
    if own["host"] == other["host"] and abs(wall) < _SAME_NS:
        return 0, "one clock"
    common = own_marks.keys() & other_marks.keys()
    if common:
        return round(statistics.median(other_marks[key] - own_marks[key] for key in common)), "marks"
    return wall, "wall clock"
