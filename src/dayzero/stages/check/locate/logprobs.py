"""Locating by what a server says alone, logprobs of given tokens: from which position on they are off, what kind of
position that is, and which change of the whole reference makes it say the same."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dayzero.errors import NotPossible
from dayzero.progress import SILENT, Progress
from dayzero.runtime.golden import Dump
from dayzero.runtime.golden.logprobs import Logprobs, logprobs
from dayzero.runtime.substitution import Everywhere, Hypothesis, Trial, Wide
from dayzero.runtime.substitution.causes import arguments, operators, values, weights
from dayzero.runtime.substitution.everywhere import everywhere, together
from dayzero.runtime.substitution.reference import reference
from dayzero.schema.located import Cause, Errors, Located, Location, Pattern, PlaceError

from .causes import CERTAIN, ENOUGH, without_layer
from .errors import FAR, Tally, largest

Array = NDArray[Any]
FACTOR = 4.0
"""How many times what correct runs differ by passes, as where dumps are compared."""
_LEAST = 1e-4
"""Nats that pass whatever correct runs differ by: what sums of another order in f32 make of logits of some tens."""
_TOP, _NEAREST, _LIMIT_S = 20, 3, 120.0
_TELLING = 0.1
"""Share of what is off from which a change is told that explains no more of it."""
_MANY = 0.5
_BLOCK = 8
_COARSE = "bf16"
Flags = NDArray[np.bool_]
Pairs = Sequence[tuple[Array, Array]]
"""Of each sequence [rows, 1 + k]: what a run said, and what the reference does."""


@dataclass(frozen=True)
class Told:
    """Of one sequence: what was said after each token but the last, of the next one and of the likeliest ones."""

    tokens: NDArray[np.int64]
    """[rows, 1 + k]: whose logprobs they are; what is not known has that of token 0."""
    values: Array
    """[rows, 1 + k]: nats; NaN where nothing was said."""

    def of(self, said: Array) -> Array:
        """The same of a reference that says [length, vocabulary]."""
        return np.asarray(np.take_along_axis(said[: len(self.tokens)], self.tokens, axis=1), dtype=np.float64)

    def filled(self, other: Array) -> Array:
        """What was said, with others where nothing was."""
        return np.where(np.isfinite(self.values), self.values, other)


def told(ids: NDArray[np.int64], said: Logprobs) -> Told:
    """Of one sequence."""
    tokens = np.concatenate([ids[1:, None], said.top_ids], axis=1)
    found = np.concatenate([said.tokens[:, None], np.where(said.top_ids >= 0, said.top, np.nan)], axis=1)
    return Told(np.maximum(tokens, 0), found)


class Search:
    """Of one run."""

    def __init__(self, whole: Everywhere, run: Mapping[int, Told], noise: float) -> None:
        """`noise`: energy of what correct runs are off by, over all sequences."""
        self._whole, self._run, self._noise = whole, run, noise
        plain = {number: self._left(number, None) for number in run}
        self._before = {number: left for number, left in plain.items() if left is not None}
        self._worst = max(self._before, key=self._before.__getitem__)
        self.count, self.cut_short = 0, False

    def find(self, hypotheses: Iterator[Wide], progress: Progress) -> tuple[tuple[Cause, ...], tuple[Cause, ...]]:
        """(causes that explain enough, the nearest of the others)"""
        until, found = time.process_time() + _LIMIT_S, list[tuple[float, Wide]]()
        for each in hypotheses:
            self.cut_short = time.process_time() > until
            if self.cut_short:
                break
            self.count += 1
            progress.update(f"changes of the reference: {self.count}")
            share = self._share(each, [self._worst])
            if share > _TELLING:
                found.append((share, each))
            if share > CERTAIN and self._share(each, list(self._before)) > CERTAIN:
                break
        found.sort(key=lambda pair: -pair[0])
        causes = [Cause(name=each.name, explained=share, words=f"the run {each.words}")
                  for _, each in found[:_NEAREST * 2] if (share := self._share(each, list(self._before))) > _TELLING]
        causes.sort(key=lambda cause: -cause.explained)
        enough = tuple(each for each in causes if each.explained > ENOUGH)
        return enough[:_NEAREST], () if enough else tuple(causes[:_NEAREST])

    def _share(self, change: Wide, sequences: Sequence[int]) -> float:
        """Of the energy of what is off, above noise, that is gone with a change."""
        left = [self._left(number, change) for number in sequences]
        before, noise = sum(self._before[number] for number in sequences), self._noise * len(sequences) / len(self._run)
        if any(each is None for each in left) or before <= noise:
            return 0.0
        return 1.0 - max(0.0, sum(each for each in left if each is not None) - noise) / (before - noise)

    def _left(self, number: int, change: Wide | None) -> float | None:
        said = self._whole.logprobs(number, change)
        if said is None:
            return None
        own, other = self._run[number], self._run[number].of(said)
        return _energy(own.filled(other) - other)


def _energy(apart: Array) -> float:
    found = float((apart**2).sum())
    return found if np.isfinite(found) else float("inf")


def locate_logprobs(root: Path, dump: Dump, noise: Sequence[Dump], *, own: bool, causes: bool,
                    progress: Progress = SILENT) -> Location:
    """Where a run is wrong of which logprobs alone are known. `noise`: runs that are known to be right; without, the
    reference in bf16 tells what is normal. Raises NotPossible when nothing was said of tokens that are known."""
    run = _of(dump)
    if not run:
        raise NotPossible("the dump says nothing of tokens that are known", "record the server again")
    tokens = {number: dump.sequences[number] for number in run}
    progress.update("reading the reference")
    coarse = {} if noise else _said_in(root, _COARSE, tokens, own)
    with reference(root, own=own) as truth:
        whole = Everywhere(truth, tokens)
        said = {number: _said(whole, number) for number in run}
        pairs = [(each.filled(each.of(said[number])), each.of(said[number])) for number, each in run.items()]
        right = [[(each.filled(each.of(said[number])), each.of(said[number])) for number, each in _of(other).items()
                  if number in said] for other in noise] or [
                 [(each.of(coarse[number]), each.of(said[number])) for number, each in run.items()]]
        place, off = _judged(pairs, right)
        located: tuple[Located, ...] = ()
        if place.guilty:
            of_noise = max(sum(_energy(x - r) for x, r in each) / sum(x.size for x, _ in each) for each in right)
            search = Search(whole, run, of_noise * sum(x.size for x, _ in pairs))
            start = _start(off)
            made = hypotheses(whole.trials, truth.text_config, between=start == 1)
            found = search.find(made, progress) if causes else ((), ())
            located = (Located(layer=None, module="", op="logprobs of the given tokens", place=place,
                               patterns=_patterns(whole, truth.text_config, dict(zip(run, off, strict=True)), pairs),
                               causes=found[0], nearest=found[1], tried=search.count, cut_short=search.cut_short),)
    return Location(located=located, places=(place,),
                    reference=f"{root.name}, one process, f32, by what it says of the same tokens")


def _of(dump: Dump) -> dict[int, Told]:
    """Of sequences all of whose tokens are known."""
    found = {number: told(dump.sequences[number], said) for number, said in logprobs(dump, _TOP).items()
             if (dump.sequences[number] >= 0).all()}
    return {number: each for number, each in found.items() if np.isfinite(each.values).any()}


def _said(whole: Everywhere, number: int) -> Array:
    said = whole.logprobs(number)
    if said is None:
        raise NotPossible("the reference does not run with these tokens", "give the release that was served")
    return said


def _said_in(root: Path, dtype: str, tokens: Mapping[int, NDArray[np.int64]], own: bool) -> dict[int, Array]:
    with reference(root, dtype, own=own) as coarse:
        whole = Everywhere(coarse, tokens)
        return {number: _said(whole, number) for number in tokens}


def _judged(pairs: Pairs, right: Sequence[Pairs]) -> tuple[PlaceError, list[Flags]]:
    """(the place, for each sequence the rows that are off)"""
    error, noises = _errors(pairs), [_errors(each) for each in right]
    noise = largest(noises)
    tolerance = Errors(overall=max(FACTOR * noise.overall, _LEAST), row=max(FACTOR * noise.row, _LEAST), channel=FAR,
                       scale=FAR)
    limit = max(_LEAST, FACTOR * max(float(np.abs(x - r).max()) for each in right for x, r in each))
    place = PlaceError(module="", name="", what="logprobs", slot="given tokens and the likeliest", call=0, order=0,
                       error=error, noise=noise, tolerance=tolerance,
                       guilty=error.overall > tolerance.overall or error.row > tolerance.row)
    return place, [(np.abs(x - r) > limit).any(1) for x, r in pairs]


def _errors(pairs: Pairs) -> Errors:
    tally = Tally()
    for x, r in pairs:
        tally.add(x, r)
    return tally.errors


def _start(off: Sequence[Flags]) -> int:
    """First position after which something else is said, in any sequence; -1: nowhere."""
    return min((int(each.argmax()) for each in off if each.any()), default=-1)


def _patterns(whole: Everywhere, config: Any, off: Mapping[int, Flags], pairs: Pairs) -> tuple[Pattern, ...]:
    """From which position on, what kind of position that is, and which sequences."""
    start, found = _start(list(off.values())), list[Pattern]()
    if start < 0:
        return ()
    wrong = [number for number, each in off.items() if each.any()]
    if len(wrong) < len(off):
        found.append(Pattern(name="sequences", explained=_part(pairs, [each.any() for each in off.values()]),
                             words=f"only sequences {', '.join(map(str, wrong))} of {len(off)} are off"))
    after = np.concatenate([each[start:] for each in off.values()])
    rows = [np.arange(len(each)) >= start for each in off.values()]
    how = "" if after.mean() > _MANY else f", though only {after.mean():.0%} of what comes then"
    found.append(Pattern(name="positions", explained=_part(pairs, rows), first=start, end=max(map(len, off.values())),
                         words=f"what is said is off from position {start} on{how}: "
                         f"{_kind(start, _limits(whole, config, start))}"))
    return tuple(found)


def _part(pairs: Pairs, rows: Sequence[Any]) -> float:
    """Share of what is off that lies in these rows."""
    whole = sum(_energy(x - r) for x, r in pairs)
    return sum(_energy(x[mask] - r[mask]) for (x, r), mask in zip(pairs, rows, strict=True)) / whole


def _kind(start: int, limits: Sequence[str]) -> str:
    """What begins to count at a position."""
    if start == 0:
        return ("a token alone is wrong already, which sees itself only: what each token does by itself (embedding, "
                "norms, feed-forward, experts, values, head), or everything")
    if start == 1:
        return ("the first token is right, which sees itself only, so that nothing of queries, keys and positions is "
                "in it: the rotary embedding, queries and keys, scale or mask of attention, or what is cached")
    if limits:
        return f"where {' or '.join(limits)} begins to count"
    block = start & -start
    multiple = f"a multiple of {block}, as blocks of a cache and parts of a prefill are; " if block >= _BLOCK else ""
    return f"{multiple}before that nothing is, or less than noise explains"


def _limits(whole: Everywhere, config: Any, start: int) -> list[str]:
    """Keys of the config of about this many tokens which, when they are others, change what is said from there on and
    nothing before."""
    near = {f"config: {'.'.join(path)}": value for path, value, _ in values.keys(config)
            if type(value) is int and abs(value - start) <= 1} if start > 1 else {}
    number = max(whole.tokens, key=lambda each: len(whole.tokens[each]))
    plain, found = whole.logprobs(number), list[str]()
    for each in _configured(whole.trials, config) if near else ():
        said = whole.logprobs(number, each) if each.name in near else None
        if said is not None and plain is not None:
            off = np.flatnonzero((np.abs(said - plain) > _LEAST).any(1))
            if len(off) and abs(int(off[0]) - start) <= 1:
                found.append(f"{each.name.removeprefix('config: ')} of the config ({near[each.name]})")
    return list(dict.fromkeys(found))


def _configured(trials: Sequence[Trial], config: Any) -> Iterator[Wide]:
    return together(trials, lambda trial: values.configured(trial, getattr(trial.module, "config", None) or config))


def hypotheses(trials: Sequence[Trial], config: Any, *, between: bool) -> Iterator[Wide]:
    """Changes of the whole reference, the likeliest first. `between`: whether what is between tokens comes first."""
    groups: dict[tuple[str, type], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((without_layer(trial.by.name), type(trial.module)), []).append(trial)
    mixing = [each for each in groups.values() if each[0].kinds.get(each[0].by.name) == "attention"]
    rest = [each for each in groups.values() if each not in mixing]
    yield from _configured(trials, config)
    for group in mixing:
        yield from everywhere(group, _given, without_layer)
    for group in (*mixing, *rest) if between else (*rest, *mixing):
        yield from everywhere(group, _values, without_layer)
        yield from everywhere(group, lambda trial: operators.between(trial, operators.calls_of(trial)), without_layer)
    for group in groups.values():
        yield from everywhere(group, lambda trial: weights.whole(trial.module, trial.by.name), without_layer)


def _values(trial: Trial) -> Iterator[Hypothesis]:
    module, name = trial.module, trial.by.name
    return chain(values.kept(module, name), values.replaced(module, name, frozenset()))


def _given(trial: Trial) -> Iterator[Hypothesis]:
    case = trial.cases[0]
    given = case.arguments, case.named
    seen = torch.ones(case.length, case.length, dtype=torch.bool)
    return chain(arguments.tables(given, case.length, ()), arguments.positions(given, case.length),
                 arguments.masks(trial, [seen]))
