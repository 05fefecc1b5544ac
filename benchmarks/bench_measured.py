"""Measured tables of operators: how good interpolation between their points is, how far the roofline is from them, and
how fast they are read.

    python benchmarks/bench_measured.py [DEVICE ...]

For the newest table of each engine and operator:
  left out  nine tenths of points predicted from their two neighbours on an axis are at most so far off
  held out  a third of the points, predicted from the others: median error, and the share inside the 90 % interval
  shapes    whole shapes, predicted from the nearest other one and the ratio of the rooflines: the same two
  fit       call + factor x roofline at fitted shares: microseconds, factor, median error (before -> after)
Without the extra `measured` it says so and ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.plan_models import target

from dayzero.data import device
from dayzero.data.efficiency import efficiency
from dayzero.data.measured import Library, Slice, library
from dayzero.data.measured.grid import NINETY
from dayzero.data.measured.mapping import mapping
from dayzero.data.measured.reading import Keys, slices
from dayzero.errors import NotPossible
from dayzero.stages.plan.times.calls import Call
from dayzero.stages.plan.times.measured import Timer
from dayzero.stages.plan.times.timing import MICRO

KINDS = {"linear": "linear", "experts": "expert", "attention": "cache", "latent_attention": "latent",
         "linear_attention": "state"}
ITEMS = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "mxfp4": 0.53, "int4": 0.53}
QUERIES = 100_000
Array = np.ndarray[Any, Any]


def newest(found: Library, name: str) -> Iterator[tuple[str, str, Keys, Slice]]:
    """(operator, engine and version, keys, slice) of a device."""
    system, seen = mapping().devices[name], set()
    files = [file for file in (found.source.files if found.source else ()) if file.system == system]
    for file in sorted(files, key=lambda file: file.newness, reverse=True):
        for row in mapping().rows(file.path.name):
            if (row.operator, file.engine, row.file) not in seen:
                for keys, one in slices(file.path, row).items():
                    yield row.operator, f"{file.engine} {file.version}", keys, one
        seen |= {(row.operator, file.engine, row.file) for row in mapping().rows(file.path.name)}


def points(one: Slice) -> tuple[dict[str, Array], dict[str, Array], Array]:
    """(shape columns, grid columns, seconds) of the measured points."""
    where = np.nonzero(one.measured)
    shape = {axis: one.shapes[where[0], i] for i, axis in enumerate(one.shape_axes)}
    grid = {axis: one.points[i][where[1 + i]] for i, axis in enumerate(one.grid_axes)}
    return shape, grid, np.exp(one.logs[where])


def held_out(one: Slice, rng: np.random.Generator) -> tuple[float, float]:
    """(median error, share inside the interval) of a third of the points."""
    shape, grid, seconds = points(one)
    kept = rng.random(len(seconds)) > 1 / 3
    if kept.sum() < 20 or (~kept).sum() < 10:
        return np.nan, np.nan
    rising = [axis for axis in grid if axis in ("tokens", "sequences", "context", "bytes")]
    part = Slice.of(*({axis: column[kept] for axis, column in columns.items()} for columns in (shape, grid)),
                    seconds[kept], rising)
    found = part.read({axis: column[~kept] for axis, column in {**shape, **grid}.items()})
    fair = found.away == 0
    off = np.abs(np.log(found.seconds / seconds[~kept]))[fair]
    return float(np.median(off)), float((off <= NINETY * found.spread[fair]).mean())


class Rooflines:
    """Of one device."""

    def __init__(self, name: str) -> None:
        known = efficiency()
        self.timer = Timer(None, target(8, on=device(name)), "", known.generation(device(name).arch)[0], known.common)

    def seconds(self, operator: str, keys: dict[str, str], axes: dict[str, Array]) -> Array:
        """Of one run, without the call."""
        call = self._call(operator, keys, axes)
        return self.timer.rough(call, call.axes) - MICRO * mapping().calls[call.phase][call.kind]

    def _call(self, operator: str, keys: dict[str, str], axes: dict[str, Array]) -> Call:
        phase, scheme = keys.get("phase", ""), keys.get("scheme", "bf16")
        phase = phase or ("decode" if np.median(axes["tokens"]) < 512 else "prefill")
        ones = np.ones(len(next(iter(axes.values()))))
        whole = {"tokens": ones, "context": 0.0 * ones, **axes}
        return Call(kind=KINDS[operator], name=operator, operator=operator, keys={**keys, "phase": phase}, axes=whole,
                    times=1, scheme=scheme.removesuffix("_block"), phase=phase, weight_item=ITEMS.get(scheme, 2.0))


def other_shapes(one: Slice, operator: str, keys: dict[str, str], roof: Rooflines) -> tuple[float, float]:
    """(median error, share inside the interval) of shapes that are left out."""
    if len(one.shapes) < 3:
        return np.nan, np.nan
    offs, inside = [], []
    for i in range(0, len(one.shapes), max(1, len(one.shapes) // 40)):
        rest = np.arange(len(one.shapes)) != i
        part = replace(one, shapes=one.shapes[rest], logs=one.logs[rest], measured=one.measured[rest])
        shape, grid, seconds = points(replace(one, shapes=one.shapes[[i]], logs=one.logs[[i]],
                                              measured=one.measured[[i]]))
        found = part.read({**shape, **grid})
        here, there = (roof.seconds(operator, keys, axes) + 10 * MICRO for axes in ({**shape, **grid}, found.at))
        off = np.abs(np.log(found.seconds * here / there / seconds))
        offs.append(off)
        inside.append(off <= NINETY * found.spread)
    return float(np.median(np.concatenate(offs))), float(np.concatenate(inside).mean())


def fitted(seconds: Array, roof: Array) -> tuple[float, float, float, float]:
    """(microseconds of a call, factor, median error before, after)."""
    best = (np.inf, 0.0, 1.0, 0.0)
    for call in np.concatenate([[0], np.geomspace(1e-6, 3e-4, 60)]):
        factor = np.exp(np.median(np.log(np.maximum(seconds - call, seconds / 20) / roof)))
        off = np.abs(np.log((call + factor * roof) / seconds))
        best = min(best, (off.mean(), call, factor, float(np.median(off))))
    return best[1] / MICRO, best[2], float(np.median(np.abs(np.log(roof / seconds)))), best[3]


def shown(found: Library, name: str) -> None:
    """A line for each slice of a device."""
    rng, roof = np.random.default_rng(0), Rooflines(name)
    print(f"\n{name}: {'operator':17} {'from':20} {'keys':24} points  left out     held out    shapes      fit")
    for operator, engine, keys, one in newest(found, name):
        stated = dict(keys)
        out = "/".join(f"{NINETY * each:.0%}" for each in one.left_out)
        line = f"{operator:17} {engine:20} {' '.join(stated.values()):24} {one.measured.sum():6} {out:12}"
        line += " {:5.1%} {:4.0%} ".format(*held_out(one, rng))
        if operator in KINDS:
            shape, grid, seconds = points(one)
            call, factor, before, after = fitted(seconds, roof.seconds(operator, stated, {**shape, **grid}))
            line += " {:5.1%} {:4.0%} ".format(*other_shapes(one, operator, stated, roof))
            line += f" {call:5.1f} us x {factor:.2f} ({before:.0%} -> {after:.0%})"
        print(line, flush=True)


def speed(found: Library, name: str) -> None:
    """Queries a second, of one product."""
    rng = np.random.default_rng(0)
    axes = {axis: np.exp2(rng.uniform(0, 13, QUERIES)) for axis in ("tokens", "outer", "inner")}
    started = time.perf_counter()
    found.read("linear", name, "vllm", {"scheme": "bf16"}, axes)
    first = time.perf_counter() - started
    started = time.perf_counter()
    found.read("linear", name, "vllm", {"scheme": "bf16"}, axes)
    print(f"{QUERIES / (time.perf_counter() - started):,.0f} lookups/s (one core, {QUERIES:,} together); "
          f"the first ones, with reading the tables, took {first:.2f} s")


def main() -> None:
    """See the module."""
    try:
        found = library()
    except NotPossible as none:
        print(f"{none.reason}; {none.hint}")
        return
    names = sys.argv[1:] or ["h200", "b200"]
    speed(found, names[0])
    for name in names:
        shown(found, name)


if __name__ == "__main__":
    main()
