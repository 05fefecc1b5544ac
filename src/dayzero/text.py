"""Somebody else's text (names from a release, words of a target) on one line that cannot steer a terminal."""

from __future__ import annotations

from collections.abc import Sequence

LINE = 1000
"""Characters of the longest line of an error or a finding."""


def printable(text: str, keep: str = "") -> str:
    """The text with every character that is not printable (control codes, line ends, changes of direction, halves of
    surrogate pairs) as an escape like `\\x1b`; those in `keep` stay."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
                   for each in text)


def one_line(text: str, limit: int = LINE) -> str:
    """The text as one printable line of at most `limit` characters, cut in the middle."""
    line = printable(text.strip())
    half = limit // 2
    return line if len(line) <= limit else f"{line[:half - 3]} ... {line[-half + 2:]}"


def some(names: Sequence[str], shown: int = 3) -> str:
    """The first few of many names, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
