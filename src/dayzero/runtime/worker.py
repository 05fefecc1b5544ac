"""One rank: `python -m dayzero.runtime.worker FOLDER`, started by the supervisor with the rank in its environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dayzero.backends.process import die_with_parent
from dayzero.errors import DayzeroError, NotPossible, UsageError
from dayzero.schema import from_json, to_json
from dayzero.schema.store import write_atomic

from .assignment import Assignment, RankResult
from .seat import Seat, take_seat
from .space import exit_without_space, full

if TYPE_CHECKING:
    from .sharding import Mesh


def main(folder: Path) -> None:
    """Do this rank's part; the result file is written when all of it is done."""
    rank = int(os.environ["RANK"])
    here = folder / f"rank-{rank}"
    (here / "pid").write_text(str(os.getpid()))
    _redirect(here / "log.txt")
    _phase(here, "importing")
    assignment = from_json((folder / "assignment.json").read_bytes(), Assignment)
    try:
        mesh, seat = _meet(assignment, rank)
        result = _work(assignment, mesh, seat, folder, here)
    except NotPossible as outcome:
        result = RankResult(rank=rank, device="", passes=(), refusal=outcome.reason)
        write_atomic(here / "result.json", to_json(result))
        return
    except DayzeroError as error:
        if full(error):
            raise
        result = RankResult(rank=rank, device="", passes=(), failure=error.message, hint=error.hint,
                            asked_wrong=isinstance(error, UsageError))
        write_atomic(here / "result.json", to_json(result))
        raise SystemExit(1) from None  # so that ranks that wait for this one are taken down
    write_atomic(here / "result.json", to_json(result))
    _phase(here, "leaving")
    mesh.leave()


def _work(assignment: Assignment, mesh: Mesh, seat: Seat, folder: Path, here: Path) -> RankResult:
    """All that is asked for."""
    if assignment.record:
        from .recording.rank import work as record

        return record(assignment, mesh, seat, lambda text: _phase(here, text))
    if assignment.relations is not None:
        from .metamorphic.rank import work as relate

        return relate(assignment, mesh, lambda text: _phase(here, text))
    if assignment.derivatives is not None:
        from .derivatives.rank import work as derive

        return derive(assignment, mesh, folder / "dump", lambda text: _phase(here, text))
    from .passes import work

    return work(assignment, mesh, seat, folder / "dump", lambda text: _phase(here, text))


def _meet(assignment: Assignment, rank: int) -> tuple[Mesh, Seat]:
    """The process groups, joined, and the device. Raises NotPossible for a layout that cannot be run."""
    from torch.distributed.rendezvous import rendezvous

    from .sharding import Mesh

    seat = take_seat(assignment.backend, assignment.layout, rank)
    mesh = Mesh(assignment.layout, rank, library=seat.library, staged=seat.staged)
    store, _, _ = next(rendezvous("env://"))
    return mesh.join(store), seat


def _phase(here: Path, text: str) -> None:
    """Replaced whole: the launcher may be reading it."""
    part = here / "phase.part"
    part.write_text(text)
    part.replace(here / "phase")


def _redirect(path: Path) -> None:
    """Everything that this process prints goes to its log, what libraries write in C included."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


if __name__ == "__main__":
    die_with_parent()
    with exit_without_space():
        main(Path(sys.argv[1]))
