"""Which stand-ins were called, and the error of a call that has none."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from dayzero.schema.graph import StandIn

F = TypeVar("F", bound=Callable[..., Any])
PLAIN = "torch"
"""Operator of a helper that is several of torch's own operators."""
_CALLS: Counter[tuple[str, str]] = Counter()


class MissingStandIn(RuntimeError):
    """Something of a kernel library was used that has no stand-in. `call`, `file` and `line` say what and where."""

    def __init__(self, call: str, file: str, line: int) -> None:
        self.call, self.file, self.line = call, file, line
        super().__init__(f"{call} has no stand-in, used at {file}:{line}")


def missing(call: str) -> MissingStandIn:
    """The error of a use of `call` by the innermost frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(__package__ or "-"):
        frame = frame.f_back
    name = frame.f_globals.get("__name__", "?").replace(".", "/")
    return MissingStandIn(call, f"{name}.py", frame.f_lineno)


def unsupported(call: str, **arguments: Any) -> None:
    """Raise MissingStandIn for the first argument that is given although its stand-in does not have it."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise missing(f"{call}({name}=...)")


def counting(call: str, op: str, function: F) -> F:
    """The function, each call of it counted under the dotted name and the operator."""

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        _CALLS[call, op or PLAIN] += 1
        return function(*args, **kwargs)

    return counted  # type: ignore[return-value]


def called() -> tuple[StandIn, ...]:
    """What was called since the last `forget`, in the order of the first calls."""
    return tuple(StandIn(call=call, op=op, times=times) for (call, op), times in _CALLS.items())


def forget() -> None:
    """Start counting anew."""
    _CALLS.clear()
