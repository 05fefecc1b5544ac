"""Hypotheses about what a module's own code does between its children: each call of a torch function in it is changed,
alone or together with those of the same line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dayzero.runtime.substitution.trial import Hypothesis, Trial

from .values import Knob
from .variants import Variant, variants

OPERATOR = 4
_TIMES = "times "
_CHOOSING, _FROM, _LAST = "gather", "from call ", 8
"""What picks values out of a tensor; any other one of its shape might be meant."""
_ALONE = frozenset({"first addend dropped", "second addend dropped", "subtracted", "split axes in the other order",
                    "first factor dropped", "second factor dropped"})
"""Variants that nobody takes everywhere at once."""
Site = tuple[str, int, str]
"""File, line and function of a call."""


@dataclass
class Call:
    """One call in the module's own code."""

    number: int
    site: Site
    function: str
    variants: list[Variant]


class _Listening(TorchFunctionMode):
    """Counts calls in the module's own code, and asks what they might be instead."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self._trial, self.calls, self._made = trial, list[Call](), list[Any]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = function(*args, **kwargs)
        if self._trial.inside():
            name = _name(function)
            found = variants(name, args, kwargs, output)
            if name == _CHOOSING:
                like = [number for number, each in enumerate(self._made) if _alike(each, args[0])]
                found += [self._other(number) for number in like[-_LAST:]]
            self.calls.append(Call(len(self.calls), _site(name), name, found))
            self._made.append(output)
        return output

    def _other(self, number: int) -> Variant:
        made = self.calls[number]
        words = f"takes what it chooses from the result of {made.function} in line {made.site[1]}"
        return Variant(f"{_FROM}{number}", words, lambda: None)


class _Changing(TorchFunctionMode):
    """Takes a variant for some of the calls."""

    def __init__(self, trial: Trial, chosen: dict[int, str]) -> None:
        super().__init__()
        self._trial, self._chosen, self._number, self._made = trial, chosen, 0, list[Any]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = function(*args, **kwargs)
        if not self._trial.inside():
            return output
        number = self._number
        self._number += 1
        self._made.append(output)
        if number not in self._chosen:
            return output
        if self._chosen[number].startswith(_TIMES):
            which, factor = self._chosen[number].removeprefix(_TIMES).split()
            return output + (float(factor) - 1) * args[which == "second"]
        if self._chosen[number].startswith(_FROM):
            return function(self._made[int(self._chosen[number].removeprefix(_FROM))], *args[1:], **kwargs)
        for each in variants(_name(function), args, kwargs, output):
            if each.name == self._chosen[number]:
                return each.compute()
        return output


def _alike(other: Any, one: Any) -> bool:
    return (isinstance(other, torch.Tensor) and isinstance(one, torch.Tensor) and other is not one
            and other.shape == one.shape and other.dtype == one.dtype)


def calls_of(trial: Trial) -> list[Call]:
    """All calls in the module's own code up to the place, for the first case; none when it cannot be run."""
    mode = _Listening(trial)
    found = replace(trial, cases=trial.cases[:1]).values(Hypothesis("", "", lambda: mode))
    return mode.calls if found is not None else []


def between(trial: Trial, calls: list[Call]) -> Iterator[Hypothesis]:
    """Every variant of every line of the module's code, of all lines together, and of single calls of a line that is
    run several times."""
    lines: dict[tuple[Site, str], list[int]] = {}
    words: dict[tuple[Site, str], Variant] = {}
    together: dict[str, list[int]] = {}
    for call in calls:
        for each in call.variants:
            lines.setdefault((call.site, each.name), []).append(call.number)
            words.setdefault((call.site, each.name), each)
            together.setdefault(each.name, []).append(call.number)
    for (site, name), each in words.items():
        numbers = together.pop(name, [])
        if len({calls[number].site for number in numbers}) > 1 and name not in _ALONE:
            yield _hypothesis(trial, name, f"{each.words} ({site[0]}:{site[1]} and elsewhere)", numbers)
    for (site, name), numbers in lines.items():
        told = f"{_residual(trial, name) or words[site, name].words} ({site[0]}:{site[1]})"
        groups = [numbers] if len(numbers) == 1 or len(numbers) > 4 else [numbers, *[[each] for each in numbers]]
        for group in groups:
            yield _hypothesis(trial, name, told, group)


def _residual(trial: Trial, name: str) -> str:
    """Addends in a layer's own code are those of residual connections."""
    if trial.kinds.get(trial.by.name) != "layer" or "addend" not in name:
        return ""
    return f"has {name} in a residual connection"


def addends(trial: Trial, calls: list[Call]) -> Iterator[Knob]:
    """Factors of one of two addends, of every line that adds."""
    lines: dict[tuple[Site, str], list[int]] = {}
    for call in calls:
        if any(each.name == "second addend doubled" for each in call.variants):
            for which in ("first", "second"):
                lines.setdefault((call.site, which), []).append(call.number)
    for (site, which), numbers in lines.items():
        yield Knob(1.0, partial(_scaled, trial, site, which, numbers))


def _scaled(trial: Trial, site: Site, which: str, numbers: list[int], factor: float) -> Hypothesis:
    words = f"scales the {which} of two addends by {factor:.4g} ({site[0]}:{site[1]})"
    chosen = dict.fromkeys(numbers, f"{_TIMES}{which} {factor!r}")
    return Hypothesis("operator: factor of an addend", words, lambda: _Changing(trial, chosen), rank=OPERATOR)


def _hypothesis(trial: Trial, name: str, words: str, numbers: list[int]) -> Hypothesis:
    chosen = dict.fromkeys(numbers, name)
    return Hypothesis(f"operator: {name}", words, lambda: _Changing(trial, chosen), rank=OPERATOR)


def named(calls: list[Call]) -> str:
    """What these calls are together, in a word or two: by what is characteristic among them."""
    names = {call.function for call in calls}
    for word, marks in _WORDS:
        if names & marks:
            return word
    return ", ".join(list(dict.fromkeys(call.function for call in calls if call.function in _ARITHMETIC))[:3])


_WORDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("routing", frozenset({"topk"})),
    ("attention", frozenset({"softmax", "scaled_dot_product_attention"})),
    ("experts", frozenset({"index_add_", "grouped_mm", "one_hot"})),
    ("recurrence", frozenset({"cumsum", "tril", "triu"})),
    ("convolution", frozenset({"conv1d", "conv2d"})),
    ("normalisation", frozenset({"rsqrt", "layer_norm", "rms_norm"})),
    ("rotary table", frozenset({"cos", "sin"})),
    ("activation", frozenset({"silu", "gelu", "relu", "sigmoid", "tanh", "softplus", "clamp"})),
    ("linear", frozenset({"linear", "matmul", "bmm", "addmm"})),
    ("lookup", frozenset({"embedding"})),
    ("addition", frozenset({"add"})),
    ("product", frozenset({"mul"})),
)
_ARITHMETIC = frozenset({"add", "sub", "mul", "div", "cat", "reshape", "view", "getitem"})


def _name(function: Any) -> str:
    name = str(getattr(function, "__name__", function))
    short = name.strip("_")
    aliases = {"radd": "add", "iadd": "add", "rmul": "mul", "imul": "mul", "truediv": "div", "rtruediv": "rdiv",
               "itruediv": "div", "rsub": "rsub", "isub": "sub", "add_": "add", "mul_": "mul", "div_": "div"}
    return aliases.get(short, "index_add_" if name == "index_add_" else short)


def _site(name: str) -> Site:
    """Where the model's code made the call: the nearest frame that is neither torch's nor of this package's trials."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if "/torch/" not in file and "/substitution/" not in file and not file.startswith("<"):
            return file.rpartition("/")[2], frame.f_lineno, name
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "", 0, name
