"""Runs what text leaves alone in a model that takes more than text: its towers, on one input of the size that their
config states, and what joins them to the text. How they are called is data (tower_inputs.toml). Needs torch."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from math import isqrt, prod
from typing import Any

import torch

from dayzero.data.tower_inputs import Tensor, tower_inputs
from dayzero.expression import ExpressionError, evaluate
from dayzero.runtime.library import LIBRARY_ERRORS, cause
from dayzero.runtime.stand_ins import MissingStandIn
from dayzero.schema.graph import PhaseName

from .captured import Captured
from .recorder import missing
from .runs import Runs
from .sites import raised_at
from .step import Step

PHASE: PhaseName = "towers"
Sizes = dict[str, int]


def run(model: torch.nn.Module, runs: Runs, text: list[Captured]) -> list[Captured]:
    """The calls of each tower. What cannot be run is told by `runs`."""
    found: list[Captured] = []
    result = None
    reached = {path for captured in text for path in captured.times}
    for name, function, configs in _methods(model):
        made = _tried(runs, function, configs, name)
        if made is not None:
            found.append(made[1])
            reached |= made[1].times.keys()
    for path in _left(model, reached):
        module = model.get_submodule(path)
        configs = [each for each in (getattr(module, "config", None), getattr(model, "config", None)) if each]
        made = _tried(runs, module, configs, path, result)
        if made is not None:
            result = _tensor(made[0])
            found.append(made[1])
    if not found:
        runs.note("no tower ran" if reached else "no tower ran, as text did not")
    return found


def _methods(model: torch.nn.Module) -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    """Methods that run a tower, with the tower's config and the whole one."""
    table, config = tower_inputs(), getattr(model, "config", None)
    for name in table.methods:
        own = next((held for key in table.configs[name] if (held := getattr(config, key, None)) is not None), None)
        method = getattr(model, name, None)
        if callable(method) and own is not None:
            yield name, method, [own, config]


def whole(found: list[Captured]) -> Captured:
    """All towers as one run."""
    repeats: dict[str, tuple[str, ...]] = {}
    times: dict[str, int] = {}
    made = 0
    for one in found:
        repeats |= one.repeats
        times = {path: made + at for path, at in one.times.items()} | times
        made += len(one.calls)
    return Captured(PHASE, 1, sum(one.tokens for one in found), 0, tuple(call for one in found for call in one.calls),
                    repeats, times)


def _tried(runs: Runs, function: Any, configs: list[Any], name: str, result: Any = None) -> tuple[Any, Captured] | None:
    """What the first way gives that works; the reason is told where none does."""
    sizes, assumed = _sizes(configs)
    call = function.forward if isinstance(function, torch.nn.Module) else function
    owner = function if isinstance(function, torch.nn.Module) else function.__self__
    reasons: list[str] = []
    place = ("", 0)
    for arguments, used in _arguments(call, sizes, _dtype(owner), result):
        step = Step(PHASE, 1, _rows(arguments, sizes))
        try:
            out, captured = runs.beside(step, functools.partial(function, **arguments))
        except MissingStandIn as error:
            runs.lack(missing(error.call, error.file, error.line))
            return None
        except LIBRARY_ERRORS as error:
            reasons.append(cause(error))
            place = raised_at(error)
            continue
        shapes = ", ".join("x".join(map(str, tensor.shape)) for tensor in arguments.values())
        guessed = [f"{size} {sizes[size]}" for size in assumed if re.search(rf"\b{size}\b", used)]
        told = f" (assumed, as its config does not say: {', '.join(guessed)})" if guessed else ""
        runs.note(f"{name} on {shapes}{told}")
        return out, captured
    told = f"{PHASE} ({name}: {'; or '.join(reasons) or 'no known form of input fits its parameters'})"
    runs.lack(missing(told, *place) if reasons else told)
    return None


def _arguments(call: Callable[..., Any], sizes: Sizes, dtype: torch.dtype, result: Any
               ) -> Iterator[tuple[dict[str, Any], str]]:
    """The arguments of each way that fits, and their sizes as text; last the result of the tower before, for what takes
    one thing."""
    parameters = inspect.signature(call).parameters
    needed = {name for name, each in parameters.items() if each.default is each.empty
              and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    for way in tower_inputs().ways:
        names = [next((name for name in tensor.names if name in parameters), "") for tensor in way.tensors]
        if all(names) and needed <= {*names}:
            try:
                made = {name: _made(tensor, sizes, dtype) for name, tensor in zip(names, way.tensors, strict=True)}
            except ExpressionError:
                continue
            yield made, " ".join(each for tensor in way.tensors for each in tensor.shape)
    if result is not None and len(needed) == 1:
        yield {needed.pop(): result}, ""


def _made(tensor: Tensor, sizes: Sizes, dtype: torch.dtype) -> torch.Tensor:
    if tensor.values:
        return torch.tensor([[evaluate(each, sizes) for each in row] for row in tensor.values], device="cpu")
    kind = {"float": dtype, "int": torch.int64, "bool": torch.bool}[tensor.dtype]
    return torch.empty([evaluate(each, sizes) for each in tensor.shape], dtype=kind, device="meta")


def _sizes(configs: list[Any]) -> tuple[Sizes, list[str]]:
    """The sizes that the configs state, and the names of those that are assumed."""
    stated, sizes, assumed = _numbers(configs), Sizes(), []
    for name, expressions in tower_inputs().sizes.items():
        for expression in expressions:
            with contextlib.suppress(ExpressionError):
                sizes[name] = evaluate(expression, stated | sizes)
                break
        else:
            if name in tower_inputs().assumed:
                sizes[name] = tower_inputs().assumed[name]
                assumed.append(name)
    return sizes, assumed


def _numbers(configs: list[Any]) -> Sizes:
    """Whole numbers of the configs, of the first one that states them; and roots."""
    found: Sizes = {}
    for config in configs:
        held = config.to_dict() if hasattr(config, "to_dict") else vars(config)
        for key, value in held.items():
            number = value[0] if isinstance(value, (list, tuple)) and value else value
            if isinstance(number, int) and not isinstance(number, bool) and number > 0 and key.isidentifier():
                found.setdefault(key, number)
                found.setdefault(f"root_{key}", isqrt(number))
    return found


def _left(model: torch.nn.Module, reached: set[str]) -> list[str]:
    """Outermost modules that no run has reached and that hold parameters; not those in a numbered list, nor those
    beside the layers that text ran, whose weights its code may use without calling them."""
    beside = tuple({f"{path[:match.start()].rpartition('.')[0]}." for path in reached
                    if (match := re.search(r"\.\d+(\.|$)", path)) and "." in path[:match.start()]})
    inside = {path[:at] for path in reached for at, letter in enumerate(path) if letter == "."} | reached
    found: list[str] = []
    for path, module in model.named_modules():
        numbered = any(part.isdigit() for part in path.split("."))
        apart = path not in inside and not path.startswith((*beside, *(f"{one}." for one in found)))
        if path and not numbered and apart and next(module.parameters(), None) is not None:
            found.append(path)
    return found


def _tensor(out: Any) -> Any:
    """The result that what joins the tower to the text takes."""
    for name in ("pooler_output", "last_hidden_state"):
        if getattr(out, name, None) is not None:
            return getattr(out, name)
    return out[0] if isinstance(out, tuple) and out else out


def _rows(arguments: dict[str, Any], sizes: Sizes) -> int:
    """Rows of an input: patches of an image, frames of sound, or what a tower gave."""
    if any(name in arguments for way in tower_inputs().ways for tensor in way.tensors for name in tensor.names):
        return sizes["patches"] ** 2 if "patch" in sizes else sizes.get("length", 1)
    return sum(prod(each.shape[:-1]) for each in arguments.values() if isinstance(each, torch.Tensor)) or 1


def _dtype(module: torch.nn.Module) -> torch.dtype:
    return next((each.dtype for each in module.parameters() if each.dtype.is_floating_point), torch.bfloat16)
