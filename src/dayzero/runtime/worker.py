"""One rank: `python -m dayzero.runtime.worker FOLDER`, started by the supervisor with the rank in its environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dayzero.backends.process import die_with_parent
from dayzero.errors import NotPossible, ReleaseError
from dayzero.schema import from_json, to_json
from dayzero.schema.store import write_atomic

from .assignment import Assignment, RankResult
from .space import exit_without_space


def main(folder: Path) -> None:
    """Do this rank's part; the result file is written when all of it is done."""
    rank = int(os.environ["RANK"])
    here = folder / f"rank-{rank}"
    (here / "pid").write_text(str(os.getpid()))
    _redirect(here / "log.txt")
    _phase(here, "importing")
    assignment = from_json((folder / "assignment.json").read_bytes(), Assignment)
    from .mesh import Mesh

    try:
        mesh = Mesh(assignment.layout)
        from .passes import work

        result = work(assignment, mesh, folder / "dump", lambda text: _phase(here, text))
    except NotPossible as outcome:
        result = RankResult(rank=rank, device="", passes=(), refusal=outcome.reason)
        write_atomic(here / "result.json", to_json(result))
        return
    except ReleaseError as error:
        result = RankResult(rank=rank, device="", passes=(), failure=error.message, hint=error.hint)
        write_atomic(here / "result.json", to_json(result))
        raise SystemExit(1) from None  # so that ranks that wait for this one are taken down
    write_atomic(here / "result.json", to_json(result))
    _phase(here, "leaving")
    mesh.leave()


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
