"""Which files may be read and written from now on: Landlock, a part of Linux since 5.13."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterable

from .system import NO_NEW_PRIVILEGES, call, prctl

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_BENEATH = 1
_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_FILES_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Version of Landlock -> how many rights about files it has; they are the lowest bits."""
_NETWORK, _SCOPES = 0b11, 0b11
"""Binding and connecting TCP, since version 4; other processes' abstract sockets and signals, since version 6."""
_OF_FILES = _EXECUTE | _WRITE | _READ | 1 << 14 | 1 << 15
"""Rights that a file can have; all others are about folders."""


def confine(readable: Iterable[str], writable: Iterable[str], *, tcp: bool = False) -> int:
    """Allow this process, for ever, to read and write below these paths only; those that are not there are skipped.
    With `tcp` it may bind and connect, in whatever network it has.

    Returns the version of Landlock. Raises OSError where there is none.
    """
    version = call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    handled = (1 << _FILES_BY_ABI[min(version, 5)]) - 1
    fields = [handled, *([0 if tcp else _NETWORK] if version >= 4 else []), *([_SCOPES] if version >= 6 else [])]
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    rules = call(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    try:
        for path in readable:
            _allow(rules, path, (_READ | _LIST | _EXECUTE) & handled)
        for path in writable:
            _allow(rules, path, handled)
        prctl(NO_NEW_PRIVILEGES, 1)
        call(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0))
    finally:
        os.close(rules)
    return version


def _allow(rules: int, path: str, rights: int) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            kept = rights if os.path.isdir(path) else rights & _OF_FILES
            call(_ADD, ctypes.c_int(rules), ctypes.c_int(_BENEATH), struct.pack("=Qi", kept, place), ctypes.c_uint32(0))
        finally:
            os.close(place)
