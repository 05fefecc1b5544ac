"""Ranks that are forks of this process: real process groups, without starting an interpreter for each."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dayzero.errors import NotPossible
from dayzero.runtime.sharding import Mesh
from dayzero.schema import Layout

SECONDS = 300


def forked(layout: Layout, folder: Path, work: Callable[[Mesh], Any]) -> list[Any]:
    """What each rank's `work` gives. Raises NotPossible when the ranks do, RuntimeError with the first failure."""
    folder.mkdir(parents=True, exist_ok=True)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_run, args=(layout, rank, folder, work)) for rank in range(layout.world_size)]
    for each in processes:
        each.start()
    for each in processes:
        each.join(SECONDS)
        each.kill()
    made = [torch.load(path, weights_only=False) if (path := folder / f"{rank}.pt").exists() else "no result"
            for rank in range(layout.world_size)]
    for each in made:
        if isinstance(each, NotPossible):
            raise each
        if isinstance(each, str):
            raise RuntimeError(each)
    return made


def _run(layout: Layout, rank: int, folder: Path, work: Callable[[Mesh], Any]) -> None:
    torch.set_num_threads(1)
    made: Any
    try:
        made = work(Mesh(layout, rank).join(dist.FileStore(str(folder / "store"), layout.world_size)))
    except NotPossible as error:
        made = error
    except Exception:
        made = traceback.format_exc()
    torch.save(made, folder / f"{rank}.pt")
    os._exit(0)  # a fork of a process with threads
