"""The boundary to somebody else's model code: what it raises on files that it was not written for, in one line, and
which of its classes make a text model. Without torch and transformers until a function is called."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from dayzero.text import one_line

LIBRARY_ERRORS = (
    RuntimeError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, ImportError, AssertionError,
    NameError, StrictDataclassError,
)  # fmt: skip
"""What the library raises on input that it was not written for. Errors of the system are not among them."""
PACKAGE = "transformers_modules"
"""Package in which libraries put the code of a release, and look whether a class is from there."""
AUTO_CLASSES = ("AutoModelForCausalLM", "AutoModelForImageTextToText")
"""What is tried, in this order: a text model, then one with towers whose text part is used."""
WHOLE_CLASSES = ("AutoModelForImageTextToText", "AutoModelForMultimodalLM")
"""What is tried before them where towers matter: not every version of the library has all."""
_SPEAKING = (RuntimeError, ValueError, OSError, ImportError, StrictDataclassError)
"""Errors whose text says what is wrong without their name."""
_LENGTH = 300
_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_CHOSEN = _CACHE in os.environ
"""Whether somebody chose the folder of compiled code; the library says it in the same variable once it is made."""


def cause(error: BaseException) -> str:
    """What an error says, in one line: its first line, and the second when that explains the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2 if lines and lines[0].endswith(":") else 1])
    name = type(error).__name__
    if isinstance(error, _SPEAKING) and text:
        return one_line(text, _LENGTH)
    return one_line(f"{name}: {text}" if text else name, _LENGTH)


def drop_empty_cache() -> None:
    """Remove the folder for compiled code that is made when parts of the library are imported, if nothing is in it."""
    if not _CHOSEN and os.environ.get(_CACHE):
        with contextlib.suppress(OSError):
            os.rmdir(os.environ[_CACHE])


def auto_class(config_class: type, *, towers: bool = False) -> Any:
    """The first of AUTO_CLASSES, with `towers` of WHOLE_CLASSES, that makes models of a config class; None when none
    does."""
    import transformers

    names = (*WHOLE_CLASSES, *AUTO_CLASSES) if towers else AUTO_CLASSES
    classes = (getattr(transformers, name, None) for name in names)
    return next((each for each in classes if each is not None and config_class in each._model_mapping), None)


def file_of(module: str) -> str:
    """File of a module as it is told: below its package, or in the release for one of a release's own."""
    parts = module.split(".")
    return f"{'/'.join(parts[2:] if parts[0] == PACKAGE and len(parts) > 2 else parts)}.py"
