"""Which change of the reference makes a guilty place what the run had there."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dayzero.runtime.substitution import Case, Computed, Hypothesis, Place, Recorded, Runner, Trial
from dayzero.runtime.substitution.causes import arguments, measured, operators, states, turned, values, weights
from dayzero.schema.located import Cause
from dayzero.stages.check.compare.places import layer_of

from .aligned import Aligned
from .errors import FAR, sets

Array = NDArray[Any]
ENOUGH = 0.95
"""A cause is named when it explains more than this share of the error's energy above noise."""
_SAME = 0.005
"""Causes that explain alike to this are told apart by what they say; others are not told beside the best."""
CERTAIN = 0.999
_PROMISING = 0.5
_NUDGE, _MATTERS = 0.05, 1e-3
_GOLDEN, _SECTIONS = 0.618, 14
_TOLD = 5
_LIMIT_S = 60.0
_NUMBER = re.compile(r"(?:^|\.)\d+\.")


@dataclass
class Tried:
    """A hypothesis, and what is left of the error."""

    hypothesis: Hypothesis
    explained: float


@dataclass(frozen=True)
class Hints:
    """What patterns say about where to look."""

    channels: tuple[int, int] | None = None
    """A range of the output's channels that are wrong."""
    experts: tuple[int, ...] = ()
    """Whose tokens are wrong."""
    since: int = 0
    """First position that is wrong."""


def without_layer(name: str) -> str:
    """A module's path with its first number left open."""
    return _NUMBER.sub(".N.", f"{name}.", count=1)


def _least(left: Callable[[float], float]) -> float:
    """Where a function of a power of ten is least: a grid over six decades, then golden sections."""
    grid = [float(each) for each in np.linspace(-3, 3, 25)]
    best = min(grid, key=left)
    low, high = best - 0.25, best + 0.25
    for _ in range(_SECTIONS):
        one, other = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, other) if left(one) < left(other) else (one, high)
    return (low + high) / 2


def unheard(trial: Trial) -> list[tuple[str, Any]]:
    """(path, module) of those inside of the trial's that were not recorded: their weights are used by its own code, as
    those of a convolution that is called as a function."""
    name = trial.by.name
    paths = [(".".join(filter(None, (name, path))), module) for path, module in trial.module.named_modules() if path]
    return [(path, module) for path, module in paths if module._parameters and not any(
        path == known or path.startswith(f"{known}.") for known in trial.known if known != name and known)]


class Causes:
    """Of one guilty place."""

    def __init__(self, runner: Runner, recorded: Recorded, computed: dict[int, Computed], place: Place, *,
                 noise: float, limit_s: float = _LIMIT_S) -> None:
        """`noise`: relative L2 that is left when nothing is wrong."""
        self._runner, self._recorded, self._noise, self._limit = runner, recorded, noise, limit_s
        self.trial = runner.trial(recorded, computed, place)
        self.calls: list[operators.Call] = operators.calls_of(self.trial) if self.trial is not None else []
        self.tried: list[Tried] = []
        """Those that a first look did not rule out."""
        self.count = 0
        """Changes that were run."""
        self.cut_short = False
        """Whether time ran out before all were."""
        self._truth: dict[int, tuple[Array, Array]] = {}
        for case in self.trial.cases if self.trial is not None else ():
            held = recorded.held(place, case.sequence)
            if held is not None:
                self._truth[case.sequence] = held.values, held.known

    def find(self, hints: Hints) -> tuple[Cause, ...]:
        """Those that explain enough, the best first."""
        trial = self.trial
        plain = trial.values() if trial is not None and self._truth else None
        if trial is None or plain is None:
            return ()
        before = [self._left(case, value) for case, value in zip(trial.cases, plain, strict=True)]
        worst = int(np.argmax([apart / whole if whole else 0.0 for apart, whole in before]))
        screen = replace(trial, cases=[trial.cases[worst]])
        until = time.process_time() + self._limit
        for group in self._groups(trial, hints):
            for hypothesis in group:
                if time.process_time() > until:
                    self.cut_short = True
                    return self._named()
                self.count += 1
                if hypothesis.runs is not None or self._explained(
                        screen, hypothesis, before[worst:worst + 1]) > _PROMISING:
                    self.tried.append(Tried(hypothesis, self._explained(trial, hypothesis, before)))
            if self.tried and max(each.explained for each in self.tried) > CERTAIN:
                break
        return self._named()

    def _explained(self, trial: Trial, hypothesis: Hypothesis, before: list[tuple[float, float]]) -> float:
        """Share of the error's energy above noise that is gone."""
        found = trial.values(hypothesis)
        if found is None or len(found) != len(trial.cases):
            return 0.0
        after = [self._left(case, value) for case, value in zip(trial.cases, found, strict=True)]
        whole = sum(each for _, each in before)
        noise = self._noise**2 * whole
        left, was = sum(each for each, _ in after), sum(each for each, _ in before)
        return 1.0 - max(0.0, left - noise) / max(was - noise, 1e-300) if was > noise else 0.0

    def _named(self) -> tuple[Cause, ...]:
        best = max((each.explained for each in self.tried), default=0.0)
        near = [each for each in self.tried if each.explained > max(ENOUGH, best - _SAME)]
        near.sort(key=lambda each: (each.hypothesis.rank, -each.explained))
        told: dict[str, Tried] = {}
        for each in near:
            told.setdefault(each.hypothesis.words, each)
        return tuple(Cause(name=each.hypothesis.name, explained=each.explained,
                           words=f"the run {each.hypothesis.words}") for each in list(told.values())[:_TOLD])

    @property
    def mixes(self) -> bool:
        """Whether what the module gives for a token depends on others: it keeps keys, values or a state of them."""
        return self._runner.kinds.get(self.trial.by.name if self.trial else "") == "attention"

    def _groups(self, trial: Trial, hints: Hints) -> Iterator[Iterable[Hypothesis]]:
        """The likeliest and cheapest first; later ones are tried when no earlier one explains everything."""
        name, module = trial.by.name, trial.module
        case = trial.cases[0]
        given = case.arguments, case.named
        yield turned.turned(trial, self._inside(name))
        config = getattr(module, "config", None) or self._runner.truth.text_config
        yield chain(values.configured(trial, config),
                    values.kept(module, name), values.replaced(module, name, trial.known),
                    arguments.skipped(trial), arguments.masks(trial, self._passes(trial), hints.since),
                    arguments.tables(given, case.length, self._tables(case.sequence)),
                    arguments.positions(given, case.length), states.of_others(trial, self._recorded),
                    weights.whole(module, name), *(weights.whole(child, path) for path, child in unheard(trial)))
        yield measured.of_linear(trial, self._truth)
        yield states.of_blocks(trial, self._recorded) if self.mixes else ()
        yield operators.between(trial, self.calls)
        yield chain(weights.slices(module, name, list(hints.experts)), self._fitted(trial, config),
                    weights.of_others(module, name, self._alike(name), hints.channels))

    def _inside(self, name: str) -> dict[str, dict[int, Array]]:
        """{place: {sequence: rows}} of modules inside of this one that only the run has, where all rows are known."""
        found: dict[str, dict[int, Array]] = {}
        other = self._recorded if isinstance(self._recorded, Aligned) else None
        for place in other.alone if other is not None else ():
            if place.what == "input" and place.name.startswith(f"{name}."):
                held = {number: each for number in self._truth
                        if other and (each := other.run.held(place, number)) is not None}
                if len(held) == len(self._truth) and all(
                        each.known.all() and each.values.dtype.kind == "f" for each in held.values()):
                    label = f"{place.slot} of {place.name.removeprefix(name + '.')}"
                    found[label] = {number: each.values for number, each in held.items()}
        return found

    def _passes(self, trial: Trial) -> list[Any]:
        """For each case [length, length]: whether a query can see a key at all."""
        numbers = [self._recorded.passes(case.sequence) for case in trial.cases]
        return [torch.from_numpy(each[None, :] <= each[:, None]) for each in numbers]

    def _fitted(self, trial: Trial, config: Any) -> Iterator[Hypothesis]:
        """Numbers that matter, each with the value that fits best."""
        plain = trial.values()
        before = [self._left(case, value) for case, value in zip(trial.cases, plain or (), strict=False)]
        for knob in chain(values.knobs(trial, config), operators.addends(trial, self.calls)):
            def left(power: float, knob: values.Knob = knob) -> float:
                return -self._explained(trial, knob.make(knob.value * 10.0**power), before)
            if before and abs(left(_NUDGE)) > _MATTERS:
                yield knob.make(knob.value * 10.0 ** _least(left))

    def _tables(self, sequence: int) -> list[arguments.Pair]:
        """Pairs that modules outside of layers gave for each token: rotary tables of other kinds of layers."""
        found: dict[tuple[str, int, str], dict[str, Any]] = {}
        for place in self._recorded.places:
            if place.what == "output" and place.name.count(".") <= 1 and layer_of(place.name) is None:
                held = self._recorded.held(place, sequence)
                if held is not None and held.values.dtype.kind == "f":
                    slot, _, asked = place.slot.partition("@")
                    found.setdefault((place.name, place.call, asked), {})[slot] = torch.from_numpy(held.values)[None]
        return [(f"of {name}" + (f", {asked}" if asked else f", call {call}"), pair["0"], pair["1"])
                for (name, call, asked), pair in found.items() if {"0", "1"} <= pair.keys()]

    def _alike(self, name: str) -> dict[str, Any]:
        """Modules beside it, and those of other layers in the same place."""
        pattern, parent = without_layer(name), name.rpartition(".")[0]
        modules = {other: module for other, module in self._runner.modules.items() if other != name}
        beside = {other: module for other, module in modules.items() if other.rpartition(".")[0] == parent}
        return beside | {other: module for other, module in modules.items()
                         if without_layer(other) == pattern}

    def _left(self, case: Case, value: Any) -> tuple[float, float]:
        """(energy of what is apart from the run, energy of the run), of rows that are known and values that are
        numbers in the run."""
        values, known = self._truth[case.sequence]
        if values.dtype.kind != "f":
            return self._rows_left(values, known, value)
        array = value.float().numpy()
        if array.size != values.size:
            return FAR, 0.0
        x, r = values.reshape(array.shape)[known].astype(np.float64), array[known].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            both = np.isfinite(x)
            apart = float(np.where(both, (x - r) ** 2, 0.0).sum())
            whole = float(np.where(both, x**2, 0.0).sum())
        return (apart if np.isfinite(apart) else FAR), whole

    def _rows_left(self, values: Array, known: Array, value: Any) -> tuple[float, float]:
        """Of indices: (rows with other members, rows)."""
        array, rows = value.long().numpy(), float(known.sum())
        if array.size != values.size:
            return rows, rows
        x, r = (sets(self.trial.place, each)[known] for each in (values, array))  # type: ignore[union-attr]
        return float((x != r).any(1).sum()), rows
