"""What torch warns of about single operators, such as that one is not there on a device and runs on the host."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dayzero.text import one_line

_OPERATORS = ("aten::", "aten.")
_WHERE, _LENGTH = " (Triggered internally", 200


@contextmanager
def operators_warned() -> Iterator[list[str]]:
    """While it is entered, the list grows; other warnings go where they went."""
    found: list[str] = []
    before = warnings.showwarning

    def show(message: Any, category: Any, *more: Any, **named: Any) -> None:
        text = one_line(str(message).partition(_WHERE)[0], _LENGTH)
        if not any(name in text for name in _OPERATORS):
            before(message, category, *more, **named)
        elif text not in found:
            found.append(text)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield found
