"""Questions whether a kernel library is installed, which the library of models answers from what the machine can do.

Code that a release ships gets the answer for its stand-ins; the library's own code keeps its own.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterable
from typing import Any

from dayzero.data.stand_ins import Question


def answer(questions: Iterable[Question], absent: frozenset[str]) -> None:
    """Replace each question about a package that is stood in for by one that says yes: to everybody, or to everybody
    but the library itself. Questions that this version of the library does not have are left out."""
    for each in questions:
        name, _, attribute = each.name.partition(":")
        if each.package not in absent or importlib.util.find_spec(name.partition(".")[0]) is None:
            continue
        module = importlib.import_module(name)
        original = getattr(module, attribute, None)
        if original is not None:
            own = original.__wrapped__ if hasattr(original, "asks_for") else original  # imported from where it was set
            setattr(module, attribute, _asked(own, each))


def _asked(original: Callable[..., Any], about: Question) -> Callable[..., Any]:
    @functools.wraps(original)
    def question(*args: Any, **kwargs: Any) -> Any:
        asking = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
        if asking == about.name.partition(".")[0] and not about.library:
            return original(*args, **kwargs)
        return True

    question.asks_for = about.package  # type: ignore[attr-defined]
    return question
