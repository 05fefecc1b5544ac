"""Which stand-ins were called, and the error of a call that has none."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from dayzero.runtime.library import file_of
from dayzero.schema.graph import StandIn

F = TypeVar("F", bound=Callable[..., Any])
PLAIN = "torch"
"""Operator of a helper that is several of torch's own operators."""
_CALLS: Counter[tuple[str, str]] = Counter()
_LISTENERS: list[Callable[[str, str], None]] = []
_RUNNING: list[str] = []


class MissingStandIn(RuntimeError):  # noqa: N818  (the name says it)
    """Something of a kernel library was used that has no stand-in. `call`, `file` and `line` say what and where."""

    def __init__(self, call: str, file: str, line: int) -> None:
        self.call, self.file, self.line = call, file, line
        super().__init__(f"{call} has no stand-in, used at {file}:{line}")


def missing(call: str) -> MissingStandIn:
    """The error of a use of `call` by the innermost frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(__package__ or "-"):
        frame = frame.f_back
    return MissingStandIn(call, file_of(frame.f_globals.get("__name__", "?")), frame.f_lineno)


def unsupported(**arguments: Any) -> None:
    """Raise MissingStandIn for the first argument of the running stand-in (or of the class that is being made) that is
    given although the stand-in does not have it: neither None, False nor 0."""
    for name, value in arguments.items():
        if hasattr(value, "shape") or value:  # a tensor is given, whatever its values
            frame = sys._getframe(1)
            owner = frame.f_locals.get("self")
            call = type(owner).__name__ if owner is not None else frame.f_code.co_name
            raise missing(f"{_RUNNING[-1] if _RUNNING else call}({name}=...)")


def counting(call: str, op: str, function: F) -> F:
    """The function, each call of it counted under the dotted name and the operator."""

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        _CALLS[call, op or PLAIN] += 1
        for listener in _LISTENERS:
            listener(call, op or PLAIN)
        _RUNNING.append(call)
        try:
            return function(*args, **kwargs)
        finally:
            _RUNNING.pop()

    return counted  # type: ignore[return-value]


@contextlib.contextmanager
def listening(listener: Callable[[str, str], None]) -> Iterator[None]:
    """The listener is told the dotted name and the operator of each call while it lasts."""
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)


def called() -> tuple[StandIn, ...]:
    """What was called since the last `forget`, in the order of the first calls."""
    return tuple(StandIn(call=call, op=op, times=times) for (call, op), times in _CALLS.items())


def forget() -> None:
    """Start counting anew."""
    _CALLS.clear()
