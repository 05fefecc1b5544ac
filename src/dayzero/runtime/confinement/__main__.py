"""`python -m dayzero.runtime.confinement`, by `isolation`: gives up what it may not have, then serves one request.

The first line of standard input is JSON for this file, the rest the request. Answers are lines on what standard output
was at the start; what the code prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .filter import refuse_calls
from .landlock import confine
from .namespaces import leave_network

_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/proc", "/sys/devices", "/sys/fs/cgroup", "/dev/urandom",
           "/dev/random", "/dev/zero", "/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/group",
           "/etc/nsswitch.conf", "/etc/mime.types", "/etc/os-release", "/etc/alternatives")  # fmt: skip
"""What programs read to start; no keys and no homes among them."""
_NETWORK, _CALLS = "a network of its own, with nobody in it", "no sockets, no other programs or processes"
_FILES = "reads what is installed and the release, writes below a scratch folder only"
_FILE = 1 << 30
"""Bytes of the longest file that may be written."""
_LIBRARIES = 32 << 30
"""Addresses, in bytes, for libraries and files that are only mapped."""


def _limits(memory: int, seconds: float) -> None:
    _lower(resource.RLIMIT_DATA, memory)
    _lower(resource.RLIMIT_AS, memory + _LIBRARIES)
    _lower(resource.RLIMIT_FSIZE, _FILE)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, int(seconds * (os.cpu_count() or 1)) + 1)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # when memory ends, it is this process that ends


def _lower(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (limit, limit))


def readable_paths(more: list[str]) -> list[str]:
    """What programs and what is installed need, and `more`."""
    paths = [*_SYSTEM, *more, *sys.path, sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix,
             *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    return [os.path.abspath(path) for path in paths if path]


def _give_up(scratch: str, readable: list[str]) -> tuple[list[str], list[str]]:
    """(what holds, what could not be had)."""
    held, lacking = [], []

    def attempt(what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except (OSError, AttributeError) as error:  # no such function: another system
            lacking.append(f"{what}: {getattr(error, 'strerror', None) or error}")
        else:
            held.append(what)

    attempt(_NETWORK, leave_network)
    attempt(_FILES, lambda: confine(readable_paths(readable), [scratch, "/dev/null"]))
    attempt(_CALLS, refuse_calls)
    return held, lacking


def main() -> None:
    """Confine this process, tell what holds, and answer; without any hold on the network, stop there."""
    start: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    _limits(int(start["memory"]), float(start["seconds"]))
    held, lacking = _give_up(str(start["scratch"]), list(start["readable"]))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    offline = _NETWORK in held or _CALLS in held
    answers.write(json.dumps({"held": held, "lacking": lacking, "offline": offline}).encode() + b"\n")
    answers.flush()
    if not offline:
        return
    from dayzero.backends.process import die_with_parent  # not before: its libraries may start threads
    from dayzero.runtime.served import serve

    die_with_parent(int(start["parent"]))
    module, _, name = str(start["entry"]).partition(":")
    serve(module, name, sys.stdin.buffer.read(), answers, list(start["readable"]))


if __name__ == "__main__":
    main()
