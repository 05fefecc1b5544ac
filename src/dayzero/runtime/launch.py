"""Start the ranks of one assignment on this machine and bring back what they did, or say how they died. Without torch.

    FOLDER/assignment.json      what to do
    FOLDER/rank-N/              log.txt, pid, phase (what it is doing now), result.json (written when all is done)
    FOLDER/dump/                what ranks save for `check`
    FOLDER/exits.json           exit codes: a process can fail while it is taken down, after all work is done

No process outlives a launch: the supervisor is killed at its end, and the ranks die with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from dayzero.backends import host
from dayzero.errors import NotPossible, StageError, StoreError, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.schema import Noun, from_json, to_json
from dayzero.schema.store import write_atomic

from .assignment import Assignment, RankResult
from .isolation import environment
from .space import NO_SPACE
from .starting import library_variables

LIMIT = 3600.0
"""Seconds after which a launch counts as hung."""
_POLL = 0.1
_LOG_BYTES = 3000


class Launched(Noun, frozen=True, kw_only=True):
    """All ranks of a launch that did their work."""

    ranks: tuple[RankResult, ...]
    """In order."""
    exits: tuple[int | None, ...]
    """Exit codes, in the same order; None: taken down before it ended by itself."""
    threads: int
    """Threads of each rank."""

    @property
    def events(self) -> tuple[str, ...]:
        """What deserves to be known, of all ranks; each once."""
        odd = [f"rank {rank} ended {_how(code)} after all its work was done"
               for rank, code in enumerate(self.exits) if code]
        return tuple(dict.fromkeys([event for result in self.ranks for event in result.events] + odd))


def launch(assignment: Assignment, folder: Path, *, limit_s: float = LIMIT, progress: Progress = SILENT) -> Launched:
    """Run an assignment; `folder` then holds what its ranks left. Until then, and when it fails, what was there before
    stays there; what a failed launch left is in `folder`-failed until one succeeds.

    Raises NotPossible when the ranks cannot do it, StoreError when the disk is full, StageError with the end of the log
    when one dies or when they are not done after `limit_s` seconds.
    """
    work, failed = folder.with_name(f".{folder.name}.part"), folder.with_name(f"{folder.name}-failed")
    try:
        launched = _launch(assignment, work, limit_s, progress)
    except StageError as error:
        _replace(work, failed)
        raise StageError(error.message, error.hint.replace(str(work), str(failed)), error.log) from None
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    _replace(work, folder)
    shutil.rmtree(failed, ignore_errors=True)
    return launched


def _replace(work: Path, folder: Path) -> None:
    """Put `work` in the place of `folder`."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    work.replace(folder)


def _launch(assignment: Assignment, folder: Path, limit_s: float, progress: Progress) -> Launched:
    """`launch` in `folder` itself, which is emptied before."""
    ranks = assignment.layout.world_size
    _prepare(folder, assignment, ranks)
    threads = max(1, host.cores() // ranks)
    process = _start(folder, assignment, threads)
    try:
        _watch(process, folder, assignment, limit_s, progress)
    finally:
        _stop(process, folder, ranks)
    if process.returncode == NO_SPACE:
        raise StoreError(f"the disk of {folder.parent} is full: the ranks of {assignment.layout.text} cannot write",
                         "free some space, or choose another folder with --runs; finished stages are kept")
    if reason := _read(folder / "refusal"):
        raise NotPossible(reason, "use a Linux with user namespaces and Landlock")
    found = [_result(folder, rank) for rank in range(ranks)]
    done = tuple(result for result in found if result is not None)
    if refusals := [result.refusal for result in done if result.refusal]:
        raise NotPossible(refusals[0], "choose another layout with --layout")
    if failures := [result for result in done if result.failure]:
        kind = UsageError if failures[0].asked_wrong else StageError
        raise kind(failures[0].failure, failures[0].hint)
    if missing := [rank for rank, result in enumerate(found) if result is None]:
        raise _death(folder, ranks, missing)
    exits = _exits(folder)
    return Launched(ranks=done, exits=tuple(exits.get(rank) for rank in range(ranks)), threads=threads)


def results(folder: Path, ranks: int) -> tuple[RankResult, ...]:
    """What the ranks of an earlier launch in `folder` did. Raises StoreError when any of it is gone or damaged."""
    again = "run again with --from run --force"
    try:
        found = tuple(result for rank in range(ranks) if (result := _result(folder, rank)))
    except (OSError, ValueError) as error:
        raise StoreError(f"results in {folder} are damaged: {error}", again) from None
    if len(found) < ranks:
        raise StoreError(f"results are missing in {folder}", again)
    return found


def _prepare(folder: Path, assignment: Assignment, ranks: int) -> None:
    try:
        if folder.exists():
            shutil.rmtree(folder)
        for rank in range(ranks):
            (folder / f"rank-{rank}").mkdir(parents=True)
        (folder / "dump").mkdir()
    except OSError as error:
        raise StoreError(f"cannot use {folder}: {error.strerror}", "choose another folder with --runs") from None
    write_atomic(folder / "assignment.json", to_json(assignment))


def _start(folder: Path, assignment: Assignment, threads: int) -> subprocess.Popen[bytes]:
    """The supervisor, in a session of its own: an interrupt at the terminal reaches this process only."""
    module, more = "dayzero.runtime.supervisor", []
    inherited = dict(os.environ)
    if assignment.own:
        module = "dayzero.runtime.confinement.ranks"
        more = [assignment.root, *(each.folder for each in assignment.record)]
        inherited = environment(Path(sys.executable), folder.resolve())
    with (folder / "supervisor.txt").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, str(folder.resolve()), str(assignment.layout.world_size), *more],
            env={**inherited, **library_variables(threads)}, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True)


def _watch(process: subprocess.Popen[bytes], folder: Path, assignment: Assignment, limit_s: float,
           progress: Progress) -> None:
    """Until the supervisor ends. Raises StageError at the limit."""
    start, ranks = time.monotonic(), assignment.layout.world_size
    while process.poll() is None:
        seconds = time.monotonic() - start
        phase = _read(folder / "rank-0" / "phase") or "starting"
        progress.update(f"{assignment.layout.text}: {phase}", seconds)
        if seconds > limit_s:
            late = [rank for rank in range(ranks) if _result(folder, rank) is None]
            rank = (late or [0])[0]
            phase = _read(folder / f"rank-{rank}" / "phase") or "starting"
            raise StageError(f"rank {rank} of {ranks} is not done after {limit_s:.0f} s ({phase})",
                             f"see {folder / f'rank-{rank}' / 'log.txt'}", _log(folder, rank))
        time.sleep(_POLL)


def _stop(process: subprocess.Popen[bytes], folder: Path, ranks: int) -> None:
    """Kill what is left. The ranks die with the supervisor; those that have not asked for that yet are killed here."""
    process.kill()
    process.wait()
    for rank in range(ranks):
        pid = _read(folder / f"rank-{rank}" / "pid")
        if pid and _is_rank(int(pid), folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _is_rank(pid: int, folder: Path) -> bool:
    """Whether the process is still one of this launch and not a later one with the same number."""
    return str(folder.resolve()) in _read(Path(f"/proc/{pid}/cmdline"))


def _result(folder: Path, rank: int) -> RankResult | None:
    try:
        return from_json((folder / f"rank-{rank}" / "result.json").read_bytes(), RankResult)
    except FileNotFoundError:
        return None


def _exits(folder: Path) -> dict[int, int]:
    text = _read(folder / "exits.json")
    return {int(rank): code for rank, code in from_json(text.encode(), dict[str, int]).items()} if text else {}


def _death(folder: Path, ranks: int, missing: list[int]) -> StageError:
    """The rank that died first: torchrun's agent takes the others down, so theirs is only the signal it sent."""
    exits = _exits(folder)
    first = next((rank for rank, code in exits.items() if code not in (0, -signal.SIGTERM)), missing[0])
    phase = _read(folder / f"rank-{first}" / "phase") or "starting"
    code = exits.get(first)
    how = f"ended {_how(code)}" if code is not None else "ended"
    return StageError(f"rank {first} of {ranks} {how} while {phase}",
                      f"its last lines are below; all of them are in {folder / f'rank-{first}' / 'log.txt'}",
                      _log(folder, first))


def _how(code: int) -> str:
    return f"with {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _log(folder: Path, rank: int) -> str:
    return (_read(folder / f"rank-{rank}" / "log.txt") or _read(folder / "supervisor.txt"))[-_LOG_BYTES:].strip()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
