"""Processes that are forks of this one, each a rank that leaves its result in a file."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SECONDS = 300


def forked(run: Callable[..., Any], world: int, *args: Any) -> list[Any]:
    """What `run(number, folder, *args)` gives on each of so many ranks, which meet in the folder; text: why there is
    nothing."""
    folder, fork = Path(tempfile.mkdtemp()), multiprocessing.get_context("fork")
    processes = [fork.Process(target=_rank, args=(run, number, folder, *args)) for number in range(world)]
    for each in processes:
        each.start()
    end = time.monotonic() + SECONDS
    for each in processes:
        each.join(max(0.1, end - time.monotonic()))
        if each.is_alive():
            each.kill()
    made = [torch.load(path) if (path := folder / f"{number}.pt").exists() else f"rank {number} did not finish"
            for number in range(world)]
    shutil.rmtree(folder)
    return made


def _rank(run: Callable[..., Any], number: int, folder: Path, *args: Any) -> None:
    torch.set_num_threads(1)
    try:
        result = run(number, folder, *args)
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    torch.save(result, folder / f"{number}.pt")
    os._exit(0)  # a fork of a process with threads
