"""Temporary folders that no process leaves for ever: those of one that was killed are removed by the next."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_OWNER = ".owner"
"""Locked as long as the process lives that made the folder."""


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A new folder below the system's temporary one, removed at the end. Raises OSError."""
    _sweep(prefix)
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        handle = os.open(Path(name, f"{_OWNER}.part"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            os.rename(Path(name, f"{_OWNER}.part"), Path(name, _OWNER))  # from here on it is locked or its owner dead
            yield Path(name)
        finally:
            os.close(handle)


def _sweep(prefix: str) -> None:
    """Remove this user's folders of dead owners. One that is no real folder, or whose owner lives, stays."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue
            handle = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(handle)
