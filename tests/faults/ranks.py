"""A run in a layout: every rank a process of its own that records what it computes."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.faults.fault import Fault
from tests.faults.work import Way, run, sequences

_SECONDS = 120
Plant = Callable[[Any, int], None]
"""A fault, given a rank's model and its number."""


def record_ranks(root: Path, folder: Path, layout: str, precision: str, *, way: Way | None = None,
                 fault: Fault | None = None) -> None:
    """Record a run of a release. Raises RuntimeError, with what a rank said, when one fails."""
    from dayzero.schema import Layout

    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as meeting:
        given = root, folder, layout, precision, way or Way(), fault.ranks if fault else None, meeting
        world = Layout.parse(layout).world_size
        ranks = [context.Process(target=_one, args=(number, *given)) for number in range(world)]
        for each in ranks:
            each.start()
        end = time.monotonic() + _SECONDS
        for each in ranks:
            each.join(max(0.1, end - time.monotonic()))
            if each.is_alive():
                each.kill()
                each.join()  # so that it has an exit code, which is what tells of it below
        said = [path.read_text() for path in Path(meeting).glob("*.error")]
        if said or any(each.exitcode for each in ranks):
            raise RuntimeError(" / ".join(said) or f"ranks ended with {[each.exitcode for each in ranks]}")


def _one(number: int, root: Path, folder: Path, layout: str, precision: str, way: Way, plant: Plant | None,
         meeting: str) -> None:
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    try:
        _record(number, root, folder, layout, precision, way, plant, meeting)
    except BaseException as error:
        Path(meeting, f"{number}.error").write_text(f"rank {number}: {type(error).__name__}: {error}")
    os._exit(0)  # a fork of a process with threads


def _record(number: int, root: Path, folder: Path, text: str, precision: str, way: Way, plant: Plant | None,
            meeting: str) -> None:
    import torch.distributed as dist

    from dayzero.runtime.rank import Rank
    from dayzero.runtime.recording import record
    from dayzero.runtime.recording.rank import known
    from dayzero.runtime.sharding import Mesh
    from dayzero.schema import Layout

    layout = Layout.parse(text)
    rank = Rank(root, precision, threads=1)
    rank.prepare(layout, number)
    mesh = Mesh(layout, number).join(dist.FileStore(f"{meeting}/store", layout.world_size))
    rank.join(mesh)
    if plant is not None:
        plant(rank.model, number)
    own = range(mesh.place.replica, len(sequences()), layout.dp)
    with torch.no_grad(), record(rank.model, folder, layout=layout, root=root,
                                   **known(rank.model, root)) as recording:
        run(rank.model, way, expect=recording.expect, only=own)
        with recording.paused():
            rank.settle()
