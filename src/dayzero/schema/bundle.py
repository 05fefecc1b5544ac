"""Bundle: the files that a stage hands to the user, as text, with a manifest."""

from __future__ import annotations

from .base import Noun


class Bundle(Noun, frozen=True, kw_only=True):
    """{path: text}; one writer puts them on disk."""

    files: dict[str, str]
    """Path inside the bundle -> text."""
    commands: dict[str, str]
    """What to run, by engine: one shell command each, ready to paste."""
    notes: tuple[str, ...]
    """What was not emitted, and why."""
    foremost: tuple[str, ...] = ()
    """Those of the notes that a reader needs before any command: there is none, or it is for another layout or engine
    than the plan's."""
