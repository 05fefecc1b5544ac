"""Hypotheses about numbers, switches and names that a module keeps, or that it makes of its config."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from dayzero.runtime.substitution.trial import Hypothesis, Trial, exchanging, replacing, setting

CONFIG, VALUE = 0, 2
"""Ranks: a config key says more than the attribute that was made of it."""
_OWN = frozenset({"training", "layer_idx", "call_super_init", "dump_patches"})
_TINY = 1e-2
_ROUND = (1e3, 1e4, 1e5, 5e5, 1e6, 5e6, 1e7)
_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2", "quick_gelu", "sigmoid", "tanh", "linear")
Path = tuple[str, ...]


def numbers(value: float, default: Any = None) -> list[tuple[Any, str]]:
    """(other value, how it comes about) of a number; `default`: what a class takes when nothing is said."""
    found: list[tuple[Any, str]] = []
    if isinstance(default, (int, float)) and not isinstance(default, bool) and default != value:
        found.append((default, "left at its default"))
    if isinstance(value, int):
        found += [(value + 1, "one more"), (value - 1, "one less"), (value * 2, "doubled"), (value // 2, "halved")]
    if value and math.isfinite(value):
        wide = float(value)
        found += [(each, "another round number") for each in _ROUND if abs(value) >= _ROUND[0]]
        found += [(1.0, "not applied"), (wide * wide, "applied twice"), (1 / wide, "inverted"), (wide * 2, "doubled"),
                  (wide / 2, "halved"), (wide * 10, "ten times as large"), (wide / 10, "a tenth"),
                  (wide * 100, "a hundred times as large"), (wide / 100, "a hundredth"), (-wide, "negated"),
                  (0.0, "zero")]
        if value > 0:
            found.append((math.sqrt(wide), "its square root"))
        if 0 < wide < _TINY:
            found += [(wide * 10**power, f"10^{power} times as large") for power in (*range(3, 7), *range(-6, -2))]
    else:
        found += [(1.0, "one")]
    return [(new, how) for number, (new, how) in enumerate(found)
            if new != value and all(new != earlier for earlier, _ in found[:number])]


def others(value: Any, default: Any = None) -> list[tuple[Any, str]]:
    """(other value, how it comes about) of what a config or a module holds; none of what is no number or switch."""
    if isinstance(value, bool):
        return [(not value, "switched")]
    if isinstance(value, (int, float)):
        return numbers(value, default)
    if isinstance(value, str):
        return [(name, f"{name} in its place") for name in _names(value)]
    if value is None and isinstance(default, (int, float, str)):
        return [(default, "left at its default")]
    return []


def _names(value: str) -> list[str]:
    """Other members of the library's tables in which a name stands."""
    from transformers.activations import ACT2CLS
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    tables: list[Mapping[str, Any]] = [ACT2CLS, {"default": None, **ROPE_INIT_FUNCTIONS}, {"sigmoid": 0, "softmax": 0}]
    return [name for table in tables if value in table for name in table if name != value]


@dataclass(frozen=True)
class Knob:
    """A number that may have any other value."""

    value: float
    make: Callable[[float], Hypothesis]
    """The hypothesis that it has another one."""


def knobs(trial: Trial, config: Any) -> Iterator[Knob]:
    """Numbers that a module keeps, and those of its config that its class reads."""
    module, short = trial.module, trial.by.name.rpartition(".")[2] or type(trial.module).__name__
    if callable(getattr(config, "to_dict", None)):
        read = _reads(trial, config)
        for path, value, _ in keys(config):
            if path[0] in read and _is_number(value):
                yield Knob(float(value), partial(_other_key, module, config, path, value))
    for key, value in list(vars(module).items()):
        if not key.startswith("_") and key not in _OWN and _is_number(value):
            yield Knob(float(value), partial(_other_value, module, short, key, value))


def _other_key(module: nn.Module, config: Any, path: Path, value: float, new: float) -> Hypothesis:
    key = ".".join(path)
    return Hypothesis(f"config: {key}", f"has another {key} ({new:.4g} for {_told(value)})",
                      partial(_as_made_of, module, _with(config, path, new)), rank=CONFIG)


def _other_value(module: nn.Module, short: str, key: str, value: float, new: float) -> Hypothesis:
    return Hypothesis(f"value: {key}", f"has another {key} of {short} ({new:.4g} for {_told(value)})",
                      partial(setting, module, key, new), rank=VALUE)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value > 0


def kept(module: nn.Module, name: str) -> Iterator[Hypothesis]:
    """Attributes of the module and of what is inside of it that is no module with a name of its own in a recording."""
    short = name.rpartition(".")[2] or type(module).__name__
    for key, value in list(vars(module).items()):
        if key.startswith("_") or key in _OWN:
            continue
        for new, how in others(value):
            yield Hypothesis(f"value: {key}", f"has {key} of {short} {how} ({_told(new)} for {_told(value)})",
                             partial(setting, module, key, new), rank=VALUE)


def replaced(module: nn.Module, name: str, known: frozenset[str]) -> Iterator[Hypothesis]:
    """Children without parameters that were not recorded, as activations are: others of the library's table."""
    from transformers.activations import ACT2FN

    for key, child in module.named_children():
        if f"{name}.{key}" in known or next(child.parameters(), None) is not None or next(child.children(), None):
            continue
        for other in _ACTIVATIONS:
            yield Hypothesis(f"module: {key}", f"applies {other} where {name}.{key} applies {type(child).__name__}",
                             partial(exchanging, module._modules, key, ACT2FN[other]), rank=VALUE)


def configured(trial: Trial, config: Any) -> Iterator[Hypothesis]:
    """Keys of the config that the module's class reads when it is made or run: each in turn is another one."""
    if not callable(getattr(config, "to_dict", None)):
        return
    module, read = trial.module, _reads(trial, config)
    for path, value, default in keys(config):
        if path[0] not in read:
            continue
        for new, how in others(value, default):
            changed = _with(config, path, new)
            key = ".".join(path)
            yield Hypothesis(f"config: {key}", f"has {key} {how} ({_told(new)} for {_told(value)})",
                             partial(_as_made_of, module, changed), rank=CONFIG)


@contextlib.contextmanager
def _as_made_of(module: nn.Module, config: Any) -> Iterator[None]:
    """The module has for a while what its class makes of another config, save its parameters."""
    other = _made(module, config)
    with contextlib.ExitStack() as stack:
        if other is not None:
            for key, value in vars(other).items():
                if not key.startswith("_") and key not in _OWN and key in vars(module) and _differ(
                        value, vars(module)[key]):
                    stack.enter_context(setting(module, key, value))
            for key, buffer in other._buffers.items():
                mine = module._buffers.get(key)
                if buffer is not None and mine is not None and not buffer.is_meta and mine.shape == buffer.shape:
                    stack.enter_context(replacing(module, key, buffer.to(mine.dtype)))
        if "config" in vars(module):
            stack.enter_context(setting(module, "config", config))
        yield


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, (torch.Tensor, nn.Module)) or isinstance(other, (torch.Tensor, nn.Module)):
        return False
    try:
        return bool(one != other)
    except (TypeError, ValueError, RuntimeError):
        return False


def _made(module: nn.Module, config: Any) -> nn.Module | None:
    """Another one of its class, without data in its parameters; None when its class wants more than a config and the
    number of a layer."""
    from dayzero.runtime.meta import parameters_on_meta

    given = _wanted(module, config)
    if given is None:
        return None
    with contextlib.suppress(Exception), parameters_on_meta():
        return type(module)(**given)
    return None


def _wanted(module: nn.Module, config: Any) -> dict[str, Any] | None:
    try:
        parameters = list(inspect.signature(type(module).__init__).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    given: dict[str, Any] = {}
    for each in parameters:
        if each.name == "config":
            given["config"] = config
        elif each.name in ("layer_idx", "layer_index", "idx", "layer_id") and hasattr(module, each.name):
            given[each.name] = getattr(module, each.name)
        elif each.name in vars(module) and each.default is each.empty:
            given[each.name] = vars(module)[each.name]
        elif each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            return None
    return given if "config" in given else None


def _reads(trial: Trial, config: Any) -> set[str]:
    """Keys that are looked at when another one of the class is made, and when the module runs."""
    seen: set[str] = set()
    kind = type(config)

    class Watched(kind):  # type: ignore[misc, valid-type]
        """Notes what is asked of it."""

        def __getattribute__(self, key: str) -> Any:
            seen.add(key)
            return super().__getattribute__(key)

    watched = copy.copy(config)
    try:
        watched.__class__ = Watched
    except TypeError:
        return {path[0] for path, _, _ in keys(config)}
    made = _made(trial.module, watched)
    if "config" in vars(trial.module):
        one = dataclasses.replace(trial, cases=trial.cases[:1])
        one.values(Hypothesis("", "", lambda: setting(trial.module, "config", watched)))
    elif made is None:
        seen.clear()
    return set(seen)


def keys(config: Any) -> list[tuple[Path, Any, Any]]:
    """(path, value, class default) of all keys, those of tables inside too."""
    try:
        default = type(config)().to_dict()
    except Exception:  # a class that cannot be made of nothing
        default = {}
    found: list[tuple[Path, Any, Any]] = []

    def walk(table: Mapping[str, Any], usual: Any, path: Path) -> None:
        for key, value in table.items():
            other = usual.get(key) if isinstance(usual, Mapping) else None
            if isinstance(value, Mapping):
                walk(value, other, (*path, str(key)))
            elif others(value, other):
                found.append(((*path, str(key)), value, other))

    walk(config.to_dict(), default, ())
    return found


def _with(config: Any, path: Path, value: Any) -> Any:
    """A copy with one key changed."""
    made = copy.copy(config)
    made.__dict__ = dict(config.__dict__)
    if len(path) == 1:
        made.__dict__[path[0]] = value
        return made
    table = copy.deepcopy(getattr(config, path[0]))
    made.__dict__[path[0]] = table
    for key in path[1:-1]:
        table = table[key]
    table[path[-1]] = value
    return made


def _told(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
