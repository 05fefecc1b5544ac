"""Patterns that a config states for names of modules: somebody else's text, so that what matching costs is bounded.

One that is not a pattern, or takes too long, is left out and named among the problems.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterable
from fnmatch import translate

import regex

MATCH_SECONDS = 0.25
"""Longest that one name may take with one pattern; real ones take microseconds."""
ALL_SECONDS = 3.0
"""Longest that all patterns of a config may take together."""
LONGEST = 2000
"""Most characters of a pattern."""


class Patterns:
    """Regular expressions after `re:`, matched from the start of a name, and texts with `*`, matched from `layers.` on.

    Of a text with `*` everything below a module counts too, and whatever stands before it.
    """

    def __init__(self, entries: Iterable[str], problems: list[str]) -> None:
        """`problems` collects what is left out, also while matching, one text each."""
        self._problems = problems
        self._left = ALL_SECONDS
        self._compiled: dict[str, regex.Pattern[str]] = {}
        for entry in dict.fromkeys(entries):
            started = time.perf_counter()
            self._compile(entry)
            if self._spend(started):
                break

    def match(self, module: str) -> bool:
        """Whether one of them is about the module of that name."""
        started, end = time.perf_counter(), tail(module)
        found = any(self._matches(entry, module if entry.startswith("re:") else end) for entry in [*self._compiled])
        self._spend(started)
        return found

    def _matches(self, entry: str, name: str) -> bool:
        try:
            return self._compiled[entry].match(name, timeout=MATCH_SECONDS) is not None
        except TimeoutError:
            self._leave_out(entry, "takes too long")
            return False

    def _compile(self, entry: str) -> None:
        if len(entry) > LONGEST:
            self._leave_out(entry, f"has {len(entry)} characters")
            return
        texts = (tail(entry), f"{tail(entry)}.*", f"*.{tail(entry)}")
        text = entry[3:] if entry.startswith("re:") else "|".join(map(translate, texts))
        try:
            with warnings.catch_warnings(action="ignore"):
                re.compile(text)  # what engines would do: `regex` knows more, recursion among it
                self._compiled[entry] = regex.compile(text)
        except (re.error, regex.error, RecursionError, ValueError, OverflowError):
            self._leave_out(entry, "is not a regular expression")

    def _leave_out(self, entry: str, why: str) -> None:
        self._compiled.pop(entry, None)
        self._problems.append(f"excluded modules: {entry[:80]!r} {why}; not applied")

    def _spend(self, started: float) -> bool:
        """Count the time since `started`; whether that was the last of it. No pattern is applied afterwards."""
        self._left -= time.perf_counter() - started
        if self._left < 0 and self._compiled:
            self._problems.append(f"excluded modules: {len(self._compiled)} patterns take more than {ALL_SECONDS:g} s; "
                                  "not applied to all modules")
            self._compiled.clear()
        return self._left < 0


def tail(module: str) -> str:
    """A module's name from `layers.` on: what releases put before it differs."""
    at = module.find("layers.")
    return module[at:] if at > 0 and module[at - 1] == "." else module
