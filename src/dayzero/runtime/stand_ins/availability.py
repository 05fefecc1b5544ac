"""Questions whether a kernel library is installed, which the library of models answers from what the machine can do.

Code that a release ships gets the answer for its stand-ins; the library's own code keeps its own.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any


def answer(questions: dict[str, str], absent: frozenset[str]) -> None:
    """Replace each question (`module:function` -> the package that it is about) by one that says yes, for a package
    that is stood in for, to everybody but the module's own package. Questions that this version of the library does not
    have are left out."""
    for question, package in questions.items():
        name, _, attribute = question.partition(":")
        if package not in absent:
            continue
        module = importlib.import_module(name)
        original = getattr(module, attribute, None)
        if original is not None and not hasattr(original, "asks_for"):
            setattr(module, attribute, _asked(original, package))


def _asked(original: Callable[..., Any], package: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def question(*args: Any, **kwargs: Any) -> Any:
        asking = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
        if asking == original.__module__.partition(".")[0]:
            return original(*args, **kwargs)
        return True

    question.asks_for = package  # type: ignore[attr-defined]
    return question
