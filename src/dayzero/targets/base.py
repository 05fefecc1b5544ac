"""What every emit target offers, and the shell text that they share."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Protocol

from dayzero.schema import Candidate, Noun, Release, Target


class Launch(Noun, frozen=True, kw_only=True):
    """How one layout is started with one engine. No command at all: the engine has no such layout, and the
    one note is the reason, without a full stop."""

    commands: dict[str, str]
    """What to paste, by label: the engine's name, and the node where there are several."""
    files: dict[str, str]
    """Launch scripts: path -> text."""
    notes: tuple[str, ...]
    """What the commands leave open or cannot express."""
    foremost: tuple[str, ...] = ()
    """Those of the notes without which the commands do less than the layout."""
    what: dict[str, str] = {}
    """Path -> what the file is, in a few words for the manifest; a file without an entry is told by its engine."""


class EmitTarget(Protocol):
    """An engine that plans are written out for."""

    name: str
    """Name of the engine, as target files use it."""
    version: str
    """Version whose options were checked."""

    def launch(self, release: Release, candidate: Candidate, target: Target, comments: tuple[str, ...] = ()) -> Launch:
        """Commands and scripts for one layout; `comments` go to the top of the scripts."""
        ...


def shell(words: Iterable[str]) -> str:
    """Words as one shell command; every word is quoted where it needs to be."""
    return " ".join(shlex.quote(word) for word in words)


def comment(text: str, width: int = 116) -> list[str]:
    """Text as shell comment lines. Line breaks and control characters in it cannot end the comment."""
    lines, line = [], "#"
    for word in "".join(char if char.isprintable() else " " for char in text).split():
        if len(line) + 1 + len(word) > width and line != "#":
            lines.append(line)
            line = "#  "
        line += f" {word}"
    return [*lines, line]
