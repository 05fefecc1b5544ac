"""The system calls that Python has no functions for."""

from __future__ import annotations

import ctypes
import os

NO_NEW_PRIVILEGES = 38
"""prctl: nothing that is executed can gain rights; the kernel asks for it before it takes filters from a user."""
_libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: object) -> int:
    """A system call by its number. Raises OSError."""
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments))


def prctl(option: int, *arguments: object) -> int:
    """Raises OSError."""
    longs = [ctypes.c_ulong(argument) if isinstance(argument, int) else argument for argument in arguments]
    return _checked(_libc.prctl(ctypes.c_int(option), *longs, *[ctypes.c_ulong(0)] * (4 - len(longs))))


def unshare(flags: int) -> None:
    """Leave the namespaces that the process shares with others. Raises OSError."""
    _checked(_libc.unshare(ctypes.c_int(flags)))


def drop_capabilities() -> None:
    """Give up every special right. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3 of the interface; this process
    none = (ctypes.c_uint32 * 6)()
    _checked(_libc.capset(header, none))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)
