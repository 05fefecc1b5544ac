"""How processes are started that talk through a socket: as children of this one, or of one that is confined. Without
torch."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Protocol


def library_variables(threads: int) -> dict[str, str]:
    """Of the environment of a process that computes with the libraries: its threads, no network but this machine's,
    nothing drawn, and one order of sets for all ranks, which have to come to the same conclusions."""
    return {
        "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0",
    }


class Process(Protocol):
    """What of subprocess.Popen a crew needs."""

    pid: int
    returncode: int | None

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int | None: ...


class Start(Protocol):
    """Starts a process."""

    variables: dict[str, str]
    """What of the environment processes get that are started here."""

    def __call__(self, command: list[str], environment: dict[str, str], end: int, log: Path) -> Process:
        """`end`: number of a file of this process that it keeps; `log`: file of what it prints. In the command {end} is
        the number that the file has there, and {parent} the process that starts it, with which it ends."""

    def close(self) -> None:
        """When there are no more processes."""


@cache
def starter(process: int) -> ThreadPoolExecutor:
    """The thread of this process that starts others: they end with the thread that started them, which may be any of a
    user's, and this one ends with the process. `process`: its number, as a fork has no thread of the one before."""
    del process
    return ThreadPoolExecutor(1, "starter")


class Plain:
    """As a child of this process."""

    def __init__(self) -> None:
        self.variables = dict(os.environ)

    def __call__(self, command: list[str], environment: dict[str, str], end: int, log: Path) -> Process:
        """See Start."""
        with log.open("wb") as file:
            words = {"{end}": str(end), "{parent}": str(os.getpid())}
            start = partial(subprocess.Popen, [words.get(word, word) for word in command], env=environment,
                            pass_fds=(end,), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                            start_new_session=True)
            return starter(os.getpid()).submit(start).result()

    def close(self) -> None:
        """See Start."""
