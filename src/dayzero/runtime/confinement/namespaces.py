"""A network of its own, in which there is nobody."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from pathlib import Path

from .system import drop_capabilities, unshare

_SET_FLAGS, _UP = 0x8914, 1
_NEW_USER, _NEW_NETWORK, _NEW_IPC = 0x10000000, 0x40000000, 0x08000000


def leave_network(*, loopback: bool = False) -> None:
    """Enter a user and a network namespace of this process alone; without any address, not even its own unless
    `loopback` is set: then it and what it starts can speak to each other.

    The rights that come with a user namespace are given up again. Raises OSError where the system does not allow it.
    """
    user, group = os.getuid(), os.getgid()
    unshare(_NEW_USER | _NEW_NETWORK | _NEW_IPC)
    with contextlib.suppress(OSError):  # without it the user has no name here, which does no harm
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    if loopback:
        _raise_loopback()
    drop_capabilities()


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as place:
        fcntl.ioctl(place, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))
