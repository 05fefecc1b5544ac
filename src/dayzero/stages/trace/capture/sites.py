"""Where in the code of a model something happens: the frames between an operator and the module that runs. No torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

from dayzero.runtime.library import file_of

OURS = ("torch", __name__.partition(".")[0])
"""Packages whose frames say nothing about the model."""


class Site(NamedTuple):
    """A place that asks for a value, and what it was told."""

    file: str
    line: int
    kind: str
    assumed: str


def frames() -> Iterator[FrameType]:
    """Frames outside torch and this package up to the call of the innermost module, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in OURS:
            yield frame
        elif frame.f_code.co_name == "_call_impl":
            return
        frame = frame.f_back


def functions() -> tuple[str, ...]:
    """Names of the functions between the innermost module's forward and the operator."""
    return tuple(frame.f_code.co_name for frame in frames() if frame.f_code.co_name not in ("forward", "__call__"))


def raised_at(error: BaseException) -> tuple[str, int]:
    """File and line, as in `site`, of the innermost such frame that an error went through."""
    place, trace = ("torch", 0), error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "?")
        if name.partition(".")[0] not in OURS:
            place = (file_of(name), trace.tb_lineno)
        trace = trace.tb_next
    return place


def site() -> tuple[str, int]:
    """File, below its package or in the release, and line of the innermost frame outside torch and this package."""
    for frame in frames():
        name = frame.f_globals.get("__name__", "?")
        return file_of(name), frame.f_lineno
    return "torch", 0
