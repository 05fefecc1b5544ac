"""What an engine's loader does to the names of a checkpoint, as its profile or the target states it: renames, filters,
and the names that it expects. Works on name patterns; single names are made only where a number decides."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import regex

from dayzero.errors import TargetError
from dayzero.schema import TensorGroup

SECONDS = 0.25
"""Longest that one match may take; real ones take microseconds."""
Rows = np.ndarray[Any, np.dtype[np.int64]]
VERBS = {"strip": "to", "add": "", "prefix": "to", "suffix": "to", "from": "to", "replace": "with", "old": "new"}
"""First word of a rename, and the word of what takes the place of it."""
_TOKENS = re.compile(r"\{(?P<name>[A-Za-z_]\w*)\}|(?P<digits>\d+)|(?P<star>\*+)|(?P<text>[^{}*\d]+|.)")
_NUMBER = r"(?:\d+|\{[LE]\})"
_LEAF = r"(?:\.(?:weight|bias))?"
"""What may follow the name of a module that a loader expects."""


@dataclass(frozen=True)
class Arrival:
    """Tensors of one group on their way through a loader."""

    group: TensorGroup
    """As they are in the files."""
    rows: Rows
    """Which of them."""
    pattern: str
    """Their name now, with `{L}` and `{E}` as in the group."""

    def stored(self, row: int) -> str:
        """Name in the files."""
        return self.group.name(row)

    def name(self, row: int) -> str:
        """Name now."""
        return _fill(self.pattern, self.group, row)

    @property
    def subject(self) -> str:
        """Name in the files: of the one tensor, or the pattern of many."""
        return self.stored(int(self.rows[0])) if len(self.rows) == 1 else self.group.pattern

    def where(self, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> Arrival:
        """Those of the rows."""
        return replace(self, rows=self.rows[mask])


def _fill(pattern: str, group: TensorGroup, row: int) -> str:
    return (pattern.replace("{L}", str(int(group.layer.values[row])))
            .replace("{E}", str(int(group.expert.values[row]))))


def arrivals(groups: Iterable[TensorGroup]) -> list[Arrival]:
    """All tensors, as the files name them."""
    return [Arrival(group, np.arange(group.count), group.pattern) for group in groups]


@cache
def expression(text: str, loose: bool) -> str:
    """Regular expression of a text: `{e}` (any word) is a number, `*` anything. A number that is written out matches,
    if `loose`, a placeholder of a name pattern too."""
    made, seen = [], set()
    for token in _TOKENS.finditer(text):
        if token["name"]:
            made.append(f"(?P={token['name']})" if token["name"] in seen else f"(?P<{token['name']}>{_NUMBER})")
            seen.add(token["name"])
        elif token["digits"]:
            made.append(rf"(?:{token['digits']}|\{{[LE]\}})" if loose else token["digits"])
        else:
            made.append(".*" if token["star"] else re.escape(token["text"]))
    return "".join(made)


Form = Callable[[str], str]
"""Expression of a text -> expression of the names that it stands for."""


def anywhere(text: str) -> Form:
    """As a filter means a text: it begins where the name or one of its segments begins."""
    return lambda made: made if text[:1] in (".", "*", "_") else rf"(?:^|\.){made}"


def at_end(text: str) -> Form:
    """As a list of expected names means a text: the end of a name, or with a dot or star at its own end a part."""
    def form(made: str) -> str:
        tail = "" if text[-1:] in (".", "*") else rf"{_LEAF}$"
        return anywhere(text)(made) + tail
    return form


def hit(text: str, form: Form, arrival: Arrival) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For each row, whether its name is one that the text stands for."""
    if text.startswith("re:"):
        given = _given(text)
        return np.array([_bounded(text, given.match, arrival.name(int(row))) for row in arrival.rows], dtype=bool)
    loose, exact = (_compiled(form(expression(text, loose))) for loose in (True, False))
    mask = np.zeros(len(arrival.rows), dtype=bool)
    if not _bounded(text, loose.search, arrival.pattern):
        return mask
    if not re.search(r"\d", text):
        return ~mask
    layers = arrival.group.layer.values[arrival.rows]
    for layer in np.unique(layers):
        if _bounded(text, loose.search, arrival.pattern.replace("{L}", str(layer))):
            rows = np.flatnonzero(layers == layer)
            mask[rows] = [_bounded(text, exact.search, arrival.name(int(arrival.rows[row]))) for row in rows]
    return mask


def _bounded(text: str, match: Callable[..., object], *strings: str) -> Any:
    """Whether the expression of a text matches, or the text that it makes. Raises TargetError if it takes too long."""
    try:
        found = match(*strings, timeout=SECONDS)
    except TimeoutError:
        raise TargetError(f"[engine] {text[:80]} takes more than {SECONDS} s to match {strings[-1][:80]}",
                          "write it without repetitions inside repetitions") from None
    return found if isinstance(found, str) else found is not None


@cache
def _compiled(made: str) -> regex.Pattern[str]:
    return regex.compile(made)


@cache
def _given(text: str) -> regex.Pattern[str]:
    """The regular expression that a text with `re:` in front is. Raises TargetError."""
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(text[3:])  # what loaders would do: `regex` knows more
            return regex.compile(text[3:])
    except (re.error, regex.error, RecursionError, OverflowError, ValueError) as error:
        raise TargetError(f"[engine] {text[:80]} is no regular expression: {error}",
                          "correct it, or write the text without re:") from None


def any_hit(texts: Iterable[str], form: Callable[[str], Form], arrival: Arrival) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For each row, whether its name is one that any of the texts stands for."""
    mask = np.zeros(len(arrival.rows), dtype=bool)
    for text in texts:
        if mask.all():
            break
        mask |= hit(text, form(text), arrival)
    return mask


def renamed(found: list[Arrival], renames: Iterable[Mapping[str, str]]) -> list[Arrival]:
    """The tensors under the names that the renames give them, in their order. Raises TargetError for one that is not
    understood."""
    for rename in renames:
        old, new, form = _rename(rename)
        found = [after for arrival in found for after in _applied(arrival, old, new, form)]
    return found


def _rename(rename: Mapping[str, str]) -> tuple[str, str, Form]:
    """(text, what takes its place, where it is looked for)."""
    verb = next((verb for verb in VERBS if verb in rename), None)
    if verb is None and len(rename) == 1:
        [(old, new)] = rename.items()
        return old, new, str
    others = [word for word in rename if word != verb]
    if verb is None or len(others) > 1:
        raise TargetError(f"[engine] renames: {dict(rename)} is not understood",
                          f"write one of {', '.join(VERBS)}, and what takes the place of it as `to`")
    old, new = rename[verb], rename[others[0]] if others else ""
    if verb == "add":
        at_start = not old.startswith((".", "_"))
        return "", old, lambda made: "^" if at_start else "$"
    if verb == "suffix" or (verb == "strip" and old.startswith((".", "_"))):
        return old, new, lambda made: f"{made}$"
    return (old, new, lambda made: f"^{made}") if verb in ("strip", "prefix") else (old, new, str)


def _applied(arrival: Arrival, old: str, new: str, form: Form) -> list[Arrival]:
    mask = hit(old, form, arrival)
    if not mask.any():
        return [arrival]
    places = {word: rf"\g<{word}>" for word in re.findall(r"\{([A-Za-z_]\w*)\}", old)}
    made = re.sub(r"\{(\w+)\}", lambda found: places.get(found[1], found[0]), new.replace("\\", r"\\"))
    matched, rest = arrival.where(mask), arrival.where(~mask)
    place = _compiled(form(expression(old, False)))
    after = [replace(part, pattern=_bounded(old, place.sub, made, part.pattern))
             for part in (_by_number(matched) if re.search(r"\d", old) else [matched])]
    return [*after, rest] if len(rest.rows) else after


def _by_number(arrival: Arrival) -> list[Arrival]:
    """One for each layer (and expert), with the numbers written out."""
    parts: dict[str, list[int]] = {}
    for row in arrival.rows:
        parts.setdefault(arrival.name(int(row)), []).append(int(row))
    return [Arrival(arrival.group, np.array(rows), name) for name, rows in parts.items()]


def filter_text(entry: Mapping[str, str]) -> tuple[str, bool]:
    """(text, whether the names that match are dropped); a filter either drops or keeps. Raises TargetError."""
    words = {"drop": True, "skip": True, "ignore": True, "keep": False, "only": False}
    if len(entry) == 1:
        [(word, text)] = entry.items()
        if word in words:
            return text, words[word]
    raise TargetError(f"[engine] filters: {dict(entry)} is not understood", "write drop = ... or keep = ...")
