"""Some rows of every matrix as it was loaded: they tell whether what ran had the released weights, or rounded ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dayzero.schema import Column
from dayzero.schema.golden import Entry, Held

from .recorder import Recorder
from .statistics import NOTHING, measured
from .stream import Taken
from .taking import on_host
from .values import DTYPES, Local, local

ROWS = 8
"""Of each matrix: enough blocks of any usual size."""
_MATRIX = 2


def take_strips(recorder: Recorder, count: int = ROWS) -> None:
    """Of the matrices of all recorded modules, rows that are evenly spaced in the whole matrix; of those that a rank
    has only a part of, what it has of them. What lies in no memory is left out."""
    owners = set(recorder.names)
    made = recorder.open(phase="step", shape=(), rows=(), tokens=Column([]))
    for name, parameter in recorder.model.named_parameters():
        owner = name.rpartition(".")[0]
        if owner in owners and parameter.dim() == _MATRIX and parameter.dtype in DTYPES and not parameter.is_meta:
            _take(recorder, made.number, name, owner, local(parameter), count)
    recorder.close()


def _take(recorder: Recorder, number: int, name: str, owner: str, own: Local, count: int) -> None:
    whole = _indices(own, 0)
    size = next((each.size for each in own.held if each.axis == 0), own.value.shape[0])
    wanted = np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64))
    at = np.flatnonzero(np.isin(whole, wanted))
    if own.summed or not len(at):
        return
    value = own.value.index_select(0, torch.from_numpy(at).to(own.value.device))
    held = (Held(axis=0, size=size, ranges=tuple((int(row), int(row) + 1) for row in whole[at])),
            *(each for each in own.held if each.axis != 0))
    kind: Any = recorder.kinds[owner]
    entry = Entry(name=name, module=recorder.classes[owner], kind=kind, what="parameter", slot="", pass_no=number,
                  call=0, order=0, axes=("dim0", "channel"), shape=tuple(value.shape), dtype=DTYPES[value.dtype],
                  statistics=NOTHING, held=held)
    recorder.stream.add(Taken(entry, measured(value), *on_host(value)))


def _indices(own: Local, axis: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    held = next((each for each in own.held if each.axis == axis), None)
    if held is None:
        return np.arange(own.value.shape[axis])
    return np.concatenate([np.arange(first, end) for first, end in held.ranges])
