"""The items that are bundled: texts to predict and questions to choose from (evaluation/*.toml)."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Question(NamedTuple):
    """One multiple-choice item."""

    prompt: str
    """What is asked."""
    endings: tuple[str, ...]
    """The right one first."""


@cache
def bundled_texts() -> dict[str, str]:
    """Name -> text."""
    found = tomllib.loads(_read("texts.toml"))["texts"]
    return {name: text.strip() + "\n" for name, text in found.items()}


@cache
def bundled_questions() -> tuple[Question, ...]:
    """All of them; no prompt is there twice."""
    return tuple(Question(prompt, tuple(endings)) for prompt, *endings in tomllib.loads(_read("choices.toml"))["items"])


def _read(name: str) -> str:
    return (files("dayzero.data") / "evaluation" / name).read_text(encoding="utf-8")
