"""A planted fault: what is done to a model that is otherwise right, and what there is to find.

Faults are planted in the model that runs, by changed weights, changed attributes and changed lines of the library's own
code. Nothing here knows how faults are looked for.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.faults.work import Meddling, Way

Change = tuple[str, str]
"""A piece of source text, and what takes its place; it has to be there exactly once."""


@dataclass(frozen=True)
class Fault:
    """One fault."""

    name: str
    kind: str
    """Architecture, as `models.CONFIGS` names it."""
    modules: tuple[str, ...]
    """Paths of modules that are wrong: regular expressions for the whole path. One of them has to be named."""
    cause: str
    """Words, one of which says what is wrong: a regular expression, in small letters."""
    plant: Callable[[Any], None] = lambda model: None
    operator: str = ""
    """What kind of part is wrong."""
    precision: str = "bf16"
    """What the faulty model runs in."""
    way: Way = field(default_factory=Way)
    meddling: Meddling = field(default_factory=Meddling)
    layout: str = ""
    """Degrees of a run of several ranks, such as `tp=2`; empty: one process."""
    ranks: Callable[[Any, int], None] | None = None
    """What is done to each rank's model, given the rank's number, in a layout."""
    gradients: Callable[[Any], None] | None = None
    """What is done to a model whose gradients are recorded in place of what it computes."""
    seen: str = ""
    """A real fault of this kind."""


def layers(model: Any) -> Any:
    """The decoder layers."""
    return model.base_model.layers


def weights(path: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    """A fault of one parameter: what `change` makes of a copy in f32."""
    def plant(model: Any) -> None:
        owner, _, name = path.rpartition(".")
        value = getattr(model.get_submodule(owner), name)
        with torch.no_grad():
            value.copy_(change(value.detach().float().clone()))
    return plant


def attribute(pattern: str, **values: Any) -> Callable[[Any], None]:
    """A fault of attributes of all modules whose path matches: a value, or a function of the right one."""
    def plant(model: Any) -> None:
        for module in matching(model, pattern):
            for name, value in values.items():
                setattr(module, name, value(getattr(module, name)) if callable(value) else value)
    return plant


def code(pattern: str, **changes: Change | tuple[Change, ...]) -> Callable[[Any], None]:
    """A fault of the code of all modules whose path matches: for a method, or a function of its file that `forward`
    calls, the lines that are changed."""
    def plant(model: Any) -> None:
        for module in matching(model, pattern):
            _rewrite(module, {name: _pairs(change) for name, change in changes.items()})
    return plant


def every(*plants: Callable[[Any], None]) -> Callable[[Any], None]:
    """Several at once."""
    def plant(model: Any) -> None:
        for each in plants:
            each(model)
    return plant


def matching(model: Any, pattern: str) -> list[Any]:
    """Modules whose whole path matches. Raises LookupError when there is none."""
    found = [module for path, module in model.named_modules() if re.fullmatch(pattern, path)]
    if not found:
        raise LookupError(f"no module is called {pattern}")
    return found


def _pairs(change: Change | tuple[Change, ...]) -> tuple[Change, ...]:
    return (change,) if change and isinstance(change[0], str) else change  # type: ignore[return-value]


def _rewrite(module: Any, changes: dict[str, tuple[Change, ...]]) -> None:
    kind = type(module)
    space = dict(vars(sys.modules[kind.__module__]))
    for name, pairs in ({"forward": ()} | changes).items():
        origin = inspect.unwrap(getattr(kind, name, None) or space[name])
        source = textwrap.dedent(inspect.getsource(origin))
        for old, new in pairs:
            if source.count(old) != 1:
                raise LookupError(f"{old!r} is {source.count(old)} times in {name} of {kind.__name__}")
            source = source.replace(old, new)
        space["__class__"] = kind
        exec(compile(_plain(source), f"<{name} with a fault>", "exec"), space)
        if hasattr(kind, name):
            setattr(module, name, types.MethodType(space[name], module))


def _plain(source: str) -> str:
    """Without decorators, which send calls elsewhere."""
    start = re.search(r"^(async )?def ", source, re.MULTILINE)
    assert start
    return "from __future__ import annotations\n" + source[start.start() :]
