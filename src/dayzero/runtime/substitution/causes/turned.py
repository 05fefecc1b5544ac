"""Tensors inside of a module that only the run recorded, against what the reference's own code makes there: a rotary
embedding turns pairs of channels and keeps their lengths, so a tensor with the lengths of the reference's and other
directions was turned otherwise; by how much tells the position that was taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from dayzero.runtime.recording.values import slots
from dayzero.runtime.substitution.rows import rows_of, token_axis
from dayzero.runtime.substitution.trial import Case, Hypothesis, Trial

Array = NDArray[Any]
NAME = "rotary embedding"
_CLOSE = {"f32": 1e-4, "f16": 5e-3, "bf16": 3e-2}
"""Relative L2 below which two are the same, by the run's precision: some tens of roundoffs."""
_FIT = 0.999
_MOST, _TOKENS = 4096, 3
"""Positions that are tried, and tokens on which their rule is seen."""


def _halves(x: Array) -> tuple[Array, Array]:
    return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2:]


def _neighbours(x: Array) -> tuple[Array, Array]:
    return x[..., 0::2], x[..., 1::2]


class Table(NamedTuple):
    """Cosines and sines that the module is given, as angles for each position and pair."""

    width: int
    angles: Array
    """[pairs] in one step of positions."""


@dataclass
class Turned:
    """A tensor of the run that has the reference's lengths and other directions."""

    name: str
    call: int
    """Which call in the module's own code gives the reference's."""
    rows: dict[int, Array]
    """{sequence: [tokens, heads, channels] as the reference lays channels out}"""
    words: str


class _Keeping(TorchFunctionMode):
    """Keeps what calls in the module's own code give, or puts other tensors in their place."""

    def __init__(self, trial: Trial, length: int, instead: Mapping[int, Array] | None = None) -> None:
        super().__init__()
        self._trial, self._length, self._instead = trial, length, instead
        self._number, self.rows = 0, dict[int, Array]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        if not self._trial.inside():
            return output
        number, self._number = self._number, self._number + 1
        if not isinstance(output, torch.Tensor) or not output.is_floating_point():
            return output
        if self._instead is None:
            rows = rows_of(output, self._length)
            if rows is not None and rows.dim() > 1:
                self.rows[number] = rows.detach().float().numpy().copy()
            return output
        return _put(output, self._instead[number], self._length) if number in self._instead else output


def _put(output: torch.Tensor, rows: Array, length: int) -> torch.Tensor:
    axis, own = token_axis(tuple(output.shape), length), rows_of(output, length)
    if own is None:
        return output
    tensor = torch.from_numpy(rows).to(output.dtype).reshape(own.shape)
    return tensor[None].movedim(1, axis) if axis else tensor


def turned(trial: Trial, tensors: Mapping[str, Mapping[int, Array]]) -> Iterator[Hypothesis]:
    """`tensors`: {name: {sequence: [tokens, ...]}} of modules inside of the trial's that only the run has."""
    table = _table(trial.cases[0])
    if not tensors or table is None:
        return
    own = {case.sequence: _kept(trial, case) for case in trial.cases}
    close = _CLOSE.get(trial.recorded.precision, _CLOSE["bf16"])
    found = [each for name, rows in tensors.items() if (each := _found(name, rows, own, table, close)) is not None]
    for count in range(len(found), 0, -1):
        for group in combinations(found, count):
            words = "; ".join(each.words for each in group)
            yield Hypothesis(NAME, f"turns otherwise in the rotary embedding: {words}", rank=1,
                             runs=lambda group=group: _run(trial, group))  # type: ignore[misc]


def _kept(trial: Trial, case: Case) -> dict[int, Array]:
    mode = _Keeping(trial, case.length)
    made = replace(trial, cases=[case]).values(Hypothesis("", "", lambda: mode))
    return mode.rows if made else {}


def _run(trial: Trial, group: Sequence[Turned]) -> list[torch.Tensor]:
    found = []
    for case in trial.cases:
        instead = {each.call: each.rows[case.sequence] for each in group}
        one = replace(trial, cases=[case])
        values = one.values(Hypothesis("", "", lambda one=one, case=case, instead=instead: _Keeping(  # type: ignore[misc]
            one, case.length, instead)))
        if values is None:
            raise ValueError("the module cannot run so")
        found += values
    return found


def _found(name: str, rows: Mapping[int, Array], own: Mapping[int, Mapping[int, Array]], table: Table, close: float
           ) -> Turned | None:
    """Of the last call that gives something of these lengths."""
    first = min(rows)
    for number in sorted(own.get(first, ()), reverse=True):
        made = [(sequence, own[sequence].get(number), each) for sequence, each in rows.items() if sequence in own]
        if any(r is None or r[0].size != x[0].size for _, r, x in made):
            continue
        pairs = {sequence: (_heads(r), x.reshape(_heads(r).shape)) for sequence, r, x in made if r is not None}
        fits = [_fitted(r, x, table, close) for r, x in pairs.values()]
        if all(fit is not None for fit in fits):
            told = {fit.words for fit in fits if fit is not None}
            return Turned(name, number, {sequence: fit.rows for sequence, fit in zip(pairs, fits, strict=True)
                                         if fit is not None}, f"{name}: {' or '.join(sorted(told))}")
    return None


class _Fit(NamedTuple):
    rows: Array
    words: str


def _fitted(r: Array, x: Array, table: Table, close: float) -> _Fit | None:
    """[tokens, heads, channels] of both. None: not the same lengths, or the same values."""
    if r.shape[-1] < table.width or _apart(np.linalg.norm(x, axis=-1), np.linalg.norm(r, axis=-1)) > close:
        return None
    for part in (slice(r.shape[-1] - table.width, r.shape[-1]), slice(0, table.width)):
        rest = np.delete(np.arange(r.shape[-1]), np.r_[part])
        if rest.size and _apart(x[..., rest], r[..., rest]) > close:
            continue
        for theirs, ours in product((_halves, _neighbours), repeat=2):
            a, b = (each[0] + 1j * each[1] for each in (theirs(r[..., part]), ours(x[..., part])))
            if _apart(np.abs(b), np.abs(a)) > close:
                continue
            if _apart(b, a) < close:
                return None
            laid = r.copy()
            one, other = theirs(laid[..., part])
            one[...], other[...] = b.real, b.imag
            return _Fit(laid, _words(b * a.conj(), table.angles))
    return None


def _words(turn: Array, angles: Array) -> str:
    """`turn` [tokens, heads, pairs]: with the angle by which the run's is ahead of the reference's."""
    tokens, heads = turn.shape[:2]
    steps = np.arange(-_MOST, _MOST)
    basis = np.exp(-1j * steps[:, None] * angles)
    score = (turn.reshape(-1, len(angles)) @ basis.T).real / np.abs(turn).sum(-1).reshape(-1, 1)
    ahead, sure = steps[score.argmax(1)].reshape(tokens, heads), score.max(1).min()
    if sure < _FIT:
        return "in another direction than the reference"
    return _positions(ahead + np.arange(tokens)[:, None])


def _positions(taken: Array) -> str:
    """`taken` [tokens, heads]: the position of each, as a sum of a multiple of the token's and of the head's number, as
    far as that goes."""
    tokens, heads = taken.shape
    token, head = np.meshgrid(np.arange(tokens), np.arange(heads), indexing="ij")
    facts = np.stack([token, head, np.ones_like(token)], -1)
    few = min(tokens, _TOKENS)
    found = np.rint(np.linalg.lstsq(facts[:few].reshape(-1, 3), taken[:few].reshape(-1), rcond=None)[0]).astype(int)
    right = (facts @ found == taken).all(1)
    end = tokens if right.all() else int(np.argmin(right))
    if end < few:
        return "as at other positions than the tokens'"
    terms = [f"{'' if factor == 1 else f'{factor} '}{what}" for factor, what in zip(found, ("t", "h"), strict=False)
             if factor and (what == "t" or heads > 1)] + ([str(found[2])] if found[2] else [])
    whose = "token t in head h" if heads > 1 and found[1] else "token t"
    words = f"{whose} as at position {' + '.join(terms) or '0'}"
    if end == tokens:
        return words
    rest = set(taken[end:].reshape(-1).tolist())
    return f"{words} up to token {end - 1}, and {f'at position {rest.pop()}' if len(rest) == 1 else 'elsewhere'} after"


def _table(case: Case) -> Table | None:
    """Of two tensors that a module is given, which are cosines and sines of angles that grow with the position."""
    given = [rows for _, each in slots((case.arguments, case.named))
             if (rows := rows_of(each, case.length)) is not None and rows.dim() == 2 and len(rows) > 1
             and rows.is_floating_point()]
    for one, other in combinations(given, 2):
        if one.shape == other.shape and torch.allclose(one**2 + other**2, torch.ones_like(one), atol=1e-2):
            cos, sin = one[:2].double().numpy(), other[:2].double().numpy()
            step = np.arctan2(sin[1], cos[1]) - np.arctan2(sin[0], cos[0])
            half = len(step) // 2
            return Table(len(step), step[:half] if np.allclose(step[:half], step[half:]) else step[0::2])
    return None


def _heads(rows: Array) -> Array:
    return rows.reshape(len(rows), -1, rows.shape[-1]) if rows.ndim > 2 else rows[:, None]


def _apart(x: Array, r: Array) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        whole, apart = float((np.abs(r) ** 2).sum()), float((np.abs(x - r) ** 2).sum())
    return (apart / whole) ** 0.5 if np.isfinite(apart) and 0 < whole < float("inf") else float("inf")
