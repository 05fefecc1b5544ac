"""A disk that is full while a rank writes: told by the exit code, since nothing can be written any more."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from dayzero.errors import StoreError

NO_SPACE = os.EX_CANTCREAT
"""Exit code of a rank, and of the supervisor of one, that had no space to write in."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NUMBER = re.compile(r"\(os error (\d+)\)")


@contextlib.contextmanager
def exit_without_space() -> Iterator[None]:
    """End the process with NO_SPACE where the disk or the user's share of it is full."""
    try:
        yield
    except (OSError, StoreError) as error:
        if not full(error):
            raise
        raise SystemExit(NO_SPACE) from None


def full(error: Exception) -> bool:
    """Whether that is what an error says."""
    cause = error.__context__ if isinstance(error, StoreError) else error
    return getattr(cause, "errno", None) in _FULL


@contextlib.contextmanager
def saving(path: Path) -> Iterator[None]:
    """Around the safetensors library writing a file: what the system said to it is an OSError."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        number = _NUMBER.search(str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None
