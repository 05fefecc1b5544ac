"""What a matrix must be instead, measured from what goes in and what comes out: rows in another order, other scales of
blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dayzero.runtime.recording.values import slots
from dayzero.runtime.substitution.rows import rows_of
from dayzero.runtime.substitution.trial import Hypothesis, Trial, replacing

MEASURED = 3
_BLOCKS = ((128, 128), (1, 128), (1, 64), (1, 32), (64, 64), (32, 32), (16, 16))
"""(rows, columns) that share a scale."""
_PARTS = (2, 4, 8, 16, 32)
"""Runs of columns with one factor for all rows: shares of ranks, heads."""
_NEAR = 0.05
_ALIKE = 0.9
_ENOUGH = 4
"""Equations for each factor."""
_MOST = 50_000_000
Array = NDArray[Any]


def of_linear(trial: Trial, truth: Mapping[int, tuple[Array, Array]]) -> Iterator[Hypothesis]:
    """Of a module with one matrix that gives its product with what it is given, and a bias perhaps. `truth`: {sequence:
    (what the run has at the place, which rows are known)}."""
    found = _linear(trial, truth)
    if found is None:
        return
    weight, x, y = found
    module, name = trial.module, f"{trial.by.name}.weight"
    order = _order(x @ weight.T, y)
    if order is not None:
        moved = int((order != torch.arange(len(order))).sum())
        yield Hypothesis("weight: rows in another order", f"has {moved} of {len(order)} rows of {name} in other places",
                         lambda: replacing(module, "weight", weight[order]), rank=MEASURED)
    out, size = weight.shape
    shares = [(out, size // parts) for parts in _PARTS if size % parts == 0 and size // parts > 1]
    for number, (rows, columns) in enumerate((*shares, *_BLOCKS)):
        factors = _factors(weight, x, y, rows, columns)
        if factors is not None:
            how, words = _told(factors, columns) if rows == out else ("scales of blocks", f"has other scales for "
                                                                      f"blocks of {rows} x {columns}")
            yield Hypothesis(f"weight: {how}", f"{words} of {name} (factors from {float(factors.min()):.4g} to "
                             f"{float(factors.max()):.4g})", partial(replacing, module, "weight", weight * factors),
                             rank=MEASURED + (number >= len(shares)))


def _told(factors: torch.Tensor, columns: int) -> tuple[str, str]:
    """(what it is, words) of one factor for each run of columns."""
    each = factors[0, ::columns]
    for how, value, words in (("a share of the sum is missing", 0.0, "leaves out of the sum over ranks"),
                              ("the sign of a part", -1.0, "has the other sign in")):
        hit = (each - value).abs() < _NEAR
        if bool(hit.any()) and bool((hit | ((each - 1).abs() < _NEAR)).all()):
            found = hit.nonzero().flatten().tolist()
            parts = ", ".join(f"{number * columns} to {(number + 1) * columns - 1}" for number in found[:4])
            return how, f"{words} columns {parts}"
    return "scales of columns", f"has other scales for runs of {columns} columns"


def _linear(trial: Trial, truth: Mapping[int, tuple[Array, Array]]) -> tuple[torch.Tensor, ...] | None:
    """(matrix, what goes in [rows, columns], what comes out without the bias); None when it is no such module."""
    weight: Any = trial.module._parameters.get("weight")
    if trial.place.what != "output" or trial.place.name != trial.by.name or weight is None or weight.dim() != 2:
        return None
    inputs, outputs = [], []
    for case in trial.cases:
        given = next((tensor for _, tensor in slots((case.arguments, case.named)) if tensor.is_floating_point()), None)
        rows = rows_of(given, case.length) if given is not None else None
        if rows is None or case.sequence not in truth:
            return None
        values, known = truth[case.sequence]
        inputs.append(rows.reshape(case.length, -1)[torch.from_numpy(known)])
        outputs.append(torch.from_numpy(np.ascontiguousarray(values.reshape(case.length, -1)[known])))
    x, y, matrix = torch.cat(inputs).float(), torch.cat(outputs).float(), weight.detach().float()
    if x.shape[1] != matrix.shape[1] or y.shape[1] != matrix.shape[0] or not bool(y.isfinite().all()):
        return None
    bias = trial.module._parameters.get("bias")
    return matrix, x, y if bias is None else y - bias.detach().float()


def _order(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor | None:
    """For each row of the run's matrix the one that it is; None when that is not clear or all are their own."""
    alike = torch.nn.functional.normalize(theirs, dim=0).T @ torch.nn.functional.normalize(ours, dim=0)
    best, order = alike.max(1)
    own = torch.arange(len(order))
    order = torch.where(alike.diagonal() > _ALIKE, own, order)
    moved = order != own
    return order if bool(moved.any()) and bool((best[moved] > _ALIKE).float().mean() > _ALIKE) else None


def _factors(weight: torch.Tensor, x: torch.Tensor, y: torch.Tensor, rows: int, columns: int) -> torch.Tensor | None:
    """[rows, columns] of the factor that each block has in the run, by least squares; None where there are too few
    tokens, or one block."""
    out, size = weight.shape
    blocks = -(-size // columns)
    if blocks < 2 or len(x) * min(rows, out) < _ENOUGH * blocks or len(x) * out * blocks > _MOST:
        return None
    padded = torch.nn.functional.pad(x, (0, blocks * columns - size)).reshape(len(x), blocks, columns)
    matrix = torch.nn.functional.pad(weight, (0, blocks * columns - size)).reshape(out, blocks, columns)
    parts = torch.einsum("tbc,obc->otb", padded, matrix)
    made = []
    for first in range(0, out, rows):
        each = parts[first:first + rows]
        target = y[:, first:first + rows].T.reshape(-1, 1)
        made.append(torch.linalg.lstsq(each.reshape(-1, blocks), target).solution.reshape(1, -1))
    factors = torch.cat(made).repeat_interleave(rows, 0)[:out].repeat_interleave(columns, 1)[:, :size]
    return factors if bool(factors.isfinite().all()) else None
