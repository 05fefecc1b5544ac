"""Ranks that are forks of this process: real process groups, without starting an interpreter for each."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dayzero.errors import NotPossible
from dayzero.runtime.sharding import Mesh
from dayzero.schema import Layout

SECONDS = 300.0


def forked(layout: Layout, work: Callable[[Mesh], Any]) -> list[Any]:
    """What each rank's `work` gives. Raises NotPossible when a rank does, RuntimeError with the first failure."""
    made = ranks(_met, layout.world_size, layout, work)
    for each in made:
        if isinstance(each, NotPossible):
            raise each
        if isinstance(each, str):
            raise RuntimeError(each)
    return made


def _met(number: int, folder: Path, layout: Layout, work: Callable[[Mesh], Any]) -> Any:
    try:
        return work(Mesh(layout, number).join(dist.FileStore(str(folder / "store"), layout.world_size)))
    except NotPossible as error:
        return error


def ranks(run: Callable[..., Any], world: int, *args: Any, seconds: float = SECONDS) -> list[Any]:
    """What `run(number, folder, *args)` gives on each of so many ranks, which meet in the folder; text: why there is
    nothing. They are killed after so many seconds."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as meeting:
        folder, end = Path(meeting), time.monotonic() + seconds
        processes = [fork.Process(target=_rank, args=(run, number, folder, *args)) for number in range(world)]
        for each in processes:
            each.start()
        for each in processes:
            each.join(max(0.1, end - time.monotonic()))
            each.kill()
            each.join()
        return [torch.load(path, weights_only=False) if (path := folder / f"{number}.pt").exists() else
                f"rank {number} did not finish (exit code {each.exitcode})" for number, each in enumerate(processes)]


def _rank(run: Callable[..., Any], number: int, folder: Path, *args: Any) -> None:
    torch.set_num_threads(1)
    try:
        result = run(number, folder, *args)
    except Exception as error:
        traceback.print_exc()
        result = f"rank {number}: {type(error).__name__}: {error}"
    torch.save(result, folder / f"{number}.part")
    (folder / f"{number}.part").rename(folder / f"{number}.pt")
    os._exit(0)  # a fork of a process with threads
