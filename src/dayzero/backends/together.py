"""Processes that measure this machine together: started at once, each writes what it found, none outlives the call.

Each is `python -m MODULE PARENT FOLDER RANK RANKS THREADS` and writes FOLDER/RANK.json; FOLDER/RANK.log has its output.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dayzero.errors import StageError
from dayzero.progress import SILENT, Progress
from dayzero.schema import from_json

from .scratch import scratch

T = TypeVar("T")
_DEADLINE = 120.0
"""Seconds after which measuring hangs."""


def together(module: str, ranks: int, threads: int, result: type[T], progress: Progress = SILENT, *,
             deadline: float = _DEADLINE, prepare: Callable[[Path], object] = lambda folder: None) -> list[T]:
    """What each of `ranks` processes measured, in order. `prepare(folder)`: writes there what they need. Raises
    StageError with the end of the log when one of them dies or is not done after `deadline` seconds."""
    with scratch("dayzero-probe-") as folder:
        processes: list[subprocess.Popen[bytes]] = []
        prepare(folder)
        try:
            processes += (start(module, folder, rank, ranks, threads) for rank in range(ranks))
            _wait(processes, folder, deadline, progress)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return [from_json((folder / f"{rank}.json").read_bytes(), result) for rank in range(ranks)]


def start(module: str, folder: Path, rank: int, ranks: int, threads: int) -> subprocess.Popen[bytes]:
    """One of the processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
    arguments = [str(os.getpid()), str(folder), str(rank), str(ranks), str(threads)]
    with (folder / f"{rank}.log").open("wb") as log:
        return subprocess.Popen([sys.executable, "-m", module, *arguments], env=environment,
                                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


def _wait(processes: list[subprocess.Popen[bytes]], folder: Path, deadline: float, progress: Progress) -> None:
    """Until every process has written what it measured; how it ends after that does not matter."""
    begin, ranks = time.monotonic(), len(processes)
    while missing := [rank for rank in range(ranks) if not (folder / f"{rank}.json").exists()]:
        seconds = time.monotonic() - begin
        dead = [rank for rank in missing if processes[rank].poll() is not None]
        if dead or seconds > deadline:
            rank = _first(dead, processes) if dead else missing[0]
            how = f"ended {_how(processes[rank].returncode)}" if dead else f"still runs after {seconds:.0f} s"
            log = (folder / f"{rank}.log").read_text(errors="replace")[-2000:]
            raise StageError(f"measuring this machine failed: process {rank} of {ranks} {how}",
                             "its last lines are below; try fewer ranks" if log.strip() else "try fewer ranks", log)
        progress.update(f"measuring this machine with {ranks} process{'es' if ranks > 1 else ''}", seconds)
        time.sleep(0.1)


def _first(dead: list[int], processes: list[subprocess.Popen[bytes]]) -> int:
    """The one that a signal ended, if any: the others fail because it is gone."""
    return min(dead, key=lambda rank: processes[rank].returncode)


def _how(code: int) -> str:
    return f"with signal {-code}" if code < 0 else f"with exit code {code}"
