"""Entries of a quantisation config's lists (what to leave plain, what to quantise) matched against names of modules.

An entry is a name (`lm_head`, `mlp.gate`, `model.layers.3.self_attn.o_proj`), a text with wildcards
(`model.layers.3.self_attn*`) or a regular expression (`re:.*self_attn.*`). It stands for everything below it too. Lists
come from other people's files: what one regular expression may cost is bounded.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import translate
from functools import cache

import regex

REGEX = "re:"
SECONDS = 0.25
"""Longest that one regular expression may take with one name; real ones take microseconds."""
SLOW = 8
"""Regular expressions that may take too long before all others are given up."""
MOST = 1000
"""Most expressions of a list that every name has to be compared with; real ones have a few dozen."""
LONGEST = 2000
"""Most characters of an entry or a name that is looked at."""
_ROOTS = frozenset({"model", "language_model", "text_model", "transformer", "base_model", "thinker", "llm"})
"""Segments in front of the decoder's layers, which releases and engines spell differently."""
_WILD = re.compile(r"[*?\[]")


def normal(name: str) -> str:
    """A name without the segments that stand in front of the decoder's layers."""
    parts = name.split(".")
    first = 0
    while first < len(parts) - 1 and parts[first] in _ROOTS:
        first += 1
    return ".".join(parts[first:])


@cache
def _glob(text: str) -> regex.Pattern[str]:
    """What a text with wildcards matches: itself, and everything below it."""
    return regex.compile(f"{translate(text)}|{translate(text + '.*')}")


def is_specific(entry: str) -> bool:
    """Whether an entry names certain modules, and is not a pattern or a word for whatever there may be."""
    parts = entry.split(".")
    placed = any(part.rstrip("*").isdigit() for part in parts) or (normal(entry) != entry and not _WILD.search(entry))
    return placed and not entry.startswith(REGEX)


class Entries:
    """A list of entries, arranged so that a name is compared with few of them."""

    def __init__(self, texts: Iterable[str], *, exact: bool = False) -> None:
        """`exact`: names are compared as they are; otherwise what stands in front of the decoder's layers is left out
        on both sides."""
        self._trim = (lambda name: name) if exact else normal
        self._anywhere: dict[str, list[str]] = defaultdict(list)
        self._start: dict[str, list[str]] = defaultdict(list)
        self._rest: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self._slow = 0
        self._general: list[tuple[str, regex.Pattern[str]]] = []
        self.texts = tuple(dict.fromkeys(texts))
        self.broken: list[str] = []
        """Entries that are no regular expressions, or take too long."""
        for text in self.texts:
            self._add(text, exact)

    def _add(self, text: str, exact: bool) -> None:
        trimmed = self._trim(text)
        if text.startswith(REGEX) or len(text) > LONGEST:
            self._expression(text)
        elif not _WILD.search(text):
            placed = not exact and (trimmed != text or any(part.isdigit() for part in text.split(".")))
            (self._start if placed else self._anywhere)[trimmed.rstrip(".")].append(text)
        else:
            head = trimmed[:_WILD.search(trimmed).start()].rpartition(".")[0]  # type: ignore[union-attr]
            tail = trimmed[len(head) + 1:] if head else trimmed
            if head:
                self._rest[head].append((text, tail))
            elif len(self._general) < MOST:
                self._general.append((text, _glob(tail)))
            else:
                self.broken.append(text)

    def _expression(self, text: str) -> None:
        if len(self._general) >= MOST:
            self.broken.append(text)
            return
        try:
            re.compile(text[:LONGEST].removeprefix(REGEX))  # what engines do: `regex` would accept more
            self._general.append((text, regex.compile(text[:LONGEST].removeprefix(REGEX))))
        except (re.error, regex.error, RecursionError, OverflowError, ValueError):
            self.broken.append(text)

    def all_of(self, name: str) -> Iterator[str]:
        """Every entry that stands for the module of that name."""
        if not name or len(name) > LONGEST:
            return
        trimmed = self._trim(name)
        parts = trimmed.split(".")
        for stop in range(1, len(parts) + 1):
            yield from self._start.get(".".join(parts[:stop]), ())
        for start in range(len(parts)):
            for stop in range(start + 1, len(parts) + 1):
                window = ".".join(parts[start:stop])
                yield from self._anywhere.get(window, ())
                for text, tail in self._rest.get(window, ()):
                    if self._applies(text, _glob(tail), ".".join(parts[stop:])):
                        yield text
        for text, compiled in self._general:
            places = [name] if text.startswith(REGEX) else [".".join(parts[start:]) for start in range(len(parts))]
            if any(self._applies(text, compiled, place) for place in places):
                yield text

    def match(self, name: str) -> str | None:
        """The first entry found that stands for the module of that name; None: none does."""
        return next(self.all_of(name), None)

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """Entries that stand for none of the modules, in their order; broken expressions among them."""
        left = dict.fromkeys(self.texts)
        for name in names:
            for text in self.all_of(name):
                left.pop(text, None)
            if not left:
                break
        return list(left)

    def _applies(self, text: str, compiled: regex.Pattern[str], name: str) -> bool:
        """Whether it matches from the start of the name; one that takes too long counts as broken from then on."""
        if text in self.broken or (self._slow > SLOW and text.startswith(REGEX)):
            return False
        try:
            return compiled.match(name, timeout=SECONDS) is not None
        except TimeoutError:
            self.broken.append(text)
            self._slow += 1
            return False
