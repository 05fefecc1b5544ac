"""A run in a layout: every rank a process of its own that records what it computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.faults.fault import Fault
from tests.faults.work import Way, run, sequences
from tests.support.forked import ranks

from dayzero.schema import Layout

_SECONDS = 120.0
Plant = Callable[[Any, int], None]
"""A fault, given a rank's model and its number."""


def record_ranks(root: Path, folder: Path, layout: str, precision: str, *, way: Way | None = None,
                 fault: Fault | None = None) -> None:
    """Record a run of a release. Raises RuntimeError, with what a rank said, when one fails."""
    plan = Layout.parse(layout)
    made = ranks(_record, plan.world_size, root, folder, plan, precision, way or Way(), fault.ranks if fault else None,
                 seconds=_SECONDS)
    if said := [each for each in made if each is not None]:
        raise RuntimeError(" / ".join(said))


def _record(number: int, meeting: Path, root: Path, folder: Path, layout: Layout, precision: str, way: Way,
            plant: Plant | None) -> None:
    import torch.distributed as dist

    from dayzero.runtime.rank import Rank
    from dayzero.runtime.recording import record
    from dayzero.runtime.recording.rank import known
    from dayzero.runtime.sharding import Mesh

    rank = Rank(root, precision, threads=1)
    rank.prepare(layout, number)
    mesh = Mesh(layout, number).join(dist.FileStore(str(meeting / "store"), layout.world_size))
    rank.join(mesh)
    if plant is not None:
        plant(rank.model, number)
    own = range(mesh.place.replica, len(sequences()), layout.dp)
    with torch.no_grad(), record(rank.model, folder, layout=layout, root=root,
                                   **known(rank.model, root)) as recording:
        run(rank.model, way, expect=recording.expect, only=own)
        with recording.paused():
            rank.settle()
