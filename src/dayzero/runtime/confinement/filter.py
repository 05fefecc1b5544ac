"""Which system calls are refused from now on: a seccomp filter, a part of Linux since 3.5."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

from .system import NO_NEW_PRIVILEGES, prctl

_SECCOMP, _FILTER = 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in what the kernel shows of a call."""
_THREAD = 0x00010000
"""Flag of clone: a thread, no process."""
_OTHER_ABI = 0x40000000
"""x86: calls from here on are of another set of numbers."""
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Machine -> (its number in a filter, column of the tables)."""
_REFUSED = {
    "socket": (41, 198), "execve": (59, 221), "execveat": (322, 281), "fork": (57, -1), "vfork": (58, -1),
    "kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "unshare": (272, 97), "setns": (308, 268),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "memfd_create": (319, 279), "shmget": (29, 194), "msgget": (68, 186), "open_by_handle_at": (304, 265),
}  # fmt: skip
"""Call -> its numbers: sockets, other programs and processes, the system itself, and memory that no limit counts."""
_ABSENT = {"clone3": (435, 435), "io_uring_setup": (425, 425)}
"""Told to be missing: the C library then uses what can be looked into."""
_OF_ITSELF = {"prlimit64": (302, 261), "tgkill": (234, 131)}
"""Allowed for the process itself."""
_CLONE, _MAP = (56, 220), (9, 222)
_MAP_FLAGS, _SHARED_ANONYMOUS = 40, 0x21
"""Where they are in what the kernel shows, and memory that can be shared and that no limit counts."""


def refuse_calls() -> None:
    """Refuse, for ever, sockets, other processes and programs, signals to others and changes of the system.

    Raises OSError where there are no filters, or the machine's calls are not known here.
    """
    if platform.machine() not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no filter is written for {platform.machine()}")
    program = _program(*_MACHINES[platform.machine()], os.getpid())
    code = ctypes.create_string_buffer(program, len(program))
    prctl(NO_NEW_PRIVILEGES, 1)
    holder = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    prctl(_SECCOMP, _FILTER, ctypes.cast(holder, ctypes.c_void_p))


def _program(architecture: int, column: int, process: int) -> bytes:
    """Each test jumps over the answer that follows it, or falls into it."""
    refuse, absent = _step(_RETURN, _ERRNO | errno.EPERM), _step(_RETURN, _ERRNO | errno.ENOSYS)
    steps = [_step(_LOAD, _ARCHITECTURE), _step(_EQUAL, architecture, 1, 0), refuse, _step(_LOAD, _NUMBER),
             _step(_AT_LEAST, _OTHER_ABI, 0, 1), absent]
    for answer, table in ((refuse, _REFUSED), (absent, _ABSENT)):
        for numbers in table.values():
            if numbers[column] >= 0:
                steps += [_step(_EQUAL, numbers[column], 0, 1), answer]
    for numbers in _OF_ITSELF.values():
        steps += [_step(_EQUAL, numbers[column], 0, 5), _step(_LOAD, _FIRST_ARGUMENT), _step(_EQUAL, 0, 2, 0),
                  _step(_EQUAL, process, 1, 0), refuse, _step(_RETURN, _ALLOW)]
    steps += [_step(_EQUAL, _CLONE[column], 0, 4), _step(_LOAD, _FIRST_ARGUMENT), _step(_ANY_BIT, _THREAD, 1, 0),
              refuse, _step(_RETURN, _ALLOW)]
    steps += [_step(_EQUAL, _MAP[column], 0, 4), _step(_LOAD, _MAP_FLAGS), _step(_AND, _SHARED_ANONYMOUS),
              _step(_EQUAL, _SHARED_ANONYMOUS, 0, 1), refuse, _step(_RETURN, _ALLOW)]
    return b"".join(steps)


def _step(code: int, value: int, when: int = 0, otherwise: int = 0) -> bytes:
    """One instruction: how many it jumps over when its test holds, and otherwise."""
    return struct.pack("=HBBI", code, when, otherwise, value)
