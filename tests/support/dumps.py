"""Golden dumps made of arrays: whole, or cut over ranks and passes as a run would."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dayzero.floats import cast
from dayzero.runtime.golden import Writer
from dayzero.schema import Column, Layout
from dayzero.schema.golden import Entry, Held, Origin, Pass, RankDump, Rows, Sample, Statistics

DTYPES = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "I64": "<i8"}


class Tensor(NamedTuple):
    """What a rank gives of a module in one pass."""

    name: str
    values: np.ndarray
    what: str = "output"
    slot: str = "0"
    dtype: str = "F32"
    kind: str = "linear"
    held: tuple[Held, ...] = ()
    summed: tuple[str, ...] = ()
    axes: tuple[str, ...] | None = None
    call: int = 0
    sample: Sample | None = None
    statistics_only: bool = False
    rows: tuple[Rows, ...] = ()
    module: str = "Toy"


class Step(NamedTuple):
    """One pass of a rank."""

    rows: tuple[Rows, ...]
    tensors: list[Tensor]
    phase: str = "prefill"
    tokens: np.ndarray | None = None
    shape: tuple[int, int] | None = None
    """Batch and length; None: all rows in one."""


def runs(*found: tuple[int, int, int]) -> tuple[Rows, ...]:
    """(sequence, first, count) of each."""
    return tuple(Rows(sequence=sequence, first=first, count=count) for sequence, first, count in found)


def write(folder: Path, ranks: dict[int, tuple[dict[str, int], list[Step]]] | list[Step], layout: Layout | None = None,
          *, finish: bool = True, dtype: str = "F32", release: str = "toy", mode: str = "whole",
          digests: dict[str, str] | None = None) -> Path:
    """A dump: {rank: (its place, its passes)}, or the passes of the only one."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(ranks, list):
        ranks = {0: ({}, ranks)}
    origin = Origin(release=release, digests=digests or {}, engine="arrays", libraries={}, dtype=dtype, device="cpu")
    for rank, (place, steps) in ranks.items():
        where = dict.fromkeys(("tp", "pp", "ep", "dp", "cp"), 0) | place
        writer = Writer(folder, RankDump(finished=False, origin=origin, layout=layout or Layout(), rank=rank,
                                         place=where, seed=0, mode=mode), part_bytes=1 << 16)
        order = 0
        for number, step in enumerate(steps):
            count = sum(run.count for run in step.rows)
            tokens = step.tokens if step.tokens is not None else _tokens(step.rows)
            writer.begin(Pass(number=number, phase=step.phase, shape=step.shape or (1, count), rows=step.rows,
                              tokens=Column(tokens)))
            for tensor in step.tensors:
                writer.add(*_entry(tensor, number, order))
                order += 1
        if finish:
            writer.finish()
        else:
            writer.flush()
    return folder


def _tokens(rows: Iterable[Rows]) -> np.ndarray:
    return np.concatenate([np.full(0, 0), *(np.full(run.count, -1) if run.sequence < 0 else
                                            (np.arange(run.first, run.first + run.count) * 7 + run.sequence) % 97
                                            for run in rows)])


def _entry(tensor: Tensor, number: int, order: int) -> tuple[Entry, bytes | None]:
    values = np.asarray(tensor.values)
    axes = tensor.axes or ("token", *(f"dim{axis}" for axis in range(1, values.ndim)))
    kept = values
    if tensor.sample is not None and tensor.sample.rows is not None:
        kept = kept[tensor.sample.rows.values]
    if tensor.sample is not None and tensor.sample.columns is not None:
        kept = kept[..., tensor.sample.columns.values]
    entry = Entry(name=tensor.name, module=tensor.module, kind=tensor.kind, what=tensor.what, slot=tensor.slot,
                  pass_no=number, call=tensor.call, order=order, axes=axes, shape=values.shape, dtype=tensor.dtype,
                  rows=tensor.rows,
                  statistics=statistics(values), held=tensor.held, summed=tensor.summed, sample=tensor.sample)
    assert prod(entry.kept_shape) == kept.size
    return entry, None if tensor.statistics_only else stored(kept, tensor.dtype)


def stored(values: np.ndarray, dtype: str) -> bytes:
    """Bytes of the values in a dtype, rounded to it."""
    if dtype == "BF16":
        rounded = np.ascontiguousarray(cast(np.asarray(values, np.float32), "BF16"))
        return (rounded.view("<u4") >> 16).astype("<u2").tobytes()
    return np.ascontiguousarray(values, DTYPES[dtype]).tobytes()


def statistics(values: np.ndarray) -> Statistics:
    """Of all values."""
    wide = np.asarray(values, np.float64).reshape(-1)
    sound = wide[np.isfinite(wide)]
    some = sound if sound.size else np.zeros(1)
    return Statistics(count=wide.size, nan=int(np.isnan(wide).sum()), inf=int(np.isinf(wide).sum()),
                      minimum=float(some.min()), maximum=float(some.max()), mean=float(some.mean()),
                      rms=float(np.sqrt((some**2).mean())), max_abs=float(np.abs(some).max()))
