"""Records a release in an engine, in the process that runs it: `runtime.recording.inside` does it there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec

import dayzero
from dayzero import errors
from dayzero.errors import StageError, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.runtime.golden import Dump, open_dump
from dayzero.runtime.golden.dump import positions
from dayzero.runtime.launch import LIMIT
from dayzero.runtime.weights import check_weights
from dayzero.schema import Noun, Release, from_json, to_json
from dayzero.schema.store import refuse_folder, write_atomic
from dayzero.targets.inside import InsideEngine, Wanted, inside_engine
from dayzero.text import one_line

from .recording import Asked, Recorded, Tokens, check_asked, left_behind, told_of

_POLL, _END_S = 0.2, 10.0
_LOG_BYTES = 3000
_RUNS = "dayzero.runtime.recording.inside"


class Engine(Noun, frozen=True, kw_only=True):
    """Which engine, and how it is started."""

    name: str
    """As its plug-in is called."""
    python: str = sys.executable
    """The Python that has it."""
    options: dict[str, Any] = {}
    """Its own options, by its own names."""
    top: int = 5
    """How many of the likeliest tokens it is to tell."""


def record_inside(release: Release, tokens: Tokens, out: Path, asked: Asked, engine: Engine, *, limit_s: float = LIMIT,
                  progress: Progress = SILENT) -> Recorded:
    """Start the engine with the release and record each call of its model: one for each sequence of tokens.

    Raises UsageError for what cannot be asked of an engine, or for a Python that is none; StoreError; StageError with
    the end of its log when it does not start or dies, and when its model saw other tokens.
    """
    root, plugin = check_weights(release), inside_engine(engine.name)
    check_asked(asked, tokens, release.model.vocab_size)
    _refuse(asked)
    refuse_folder(out, (root,))
    out.mkdir(parents=True, exist_ok=True)
    wanted = Wanted(root=str(root.resolve()), dtype=asked.dtype, longest=max(map(len, tokens)), top=engine.top,
                    own=asked.own, options=engine.options)
    with left_behind(out), tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        write_atomic(folder / "job.json", to_json(_job(engine.name, plugin, wanted, asked, tokens, out)))
        _run(engine, plugin, folder, limit_s, progress)
    with open_dump(out) as dump:
        if not _as_given(dump, tokens):
            raise StageError(f"the model of {engine.name} was called with other tokens than those that were given",
                             "its options must let it take each sequence whole, and as it is")
        return told_of(dump, ())


def _as_given(dump: Dump, tokens: Tokens) -> bool:
    """Whether all sequences are there, and every pass saw the tokens that were given."""
    given = {(number, place): token for number, ids in enumerate(tokens) for place, token in enumerate(ids)}
    seen = [pair for passes in dump.passes.values() for each in passes.values() if len(each.tokens)
            for pair in zip(map(tuple, positions(each.rows).tolist()), each.tokens.values.tolist(), strict=True)]
    return dict(seen) == given and all(given[place] == token for place, token in seen)


def _refuse(asked: Asked) -> None:
    """Raises UsageError for what only a run by dayzero has."""
    plain = Asked(dtype=asked.dtype, modules=asked.modules, layers=asked.layers, mode=asked.mode, rows=asked.rows,
                  columns=asked.columns, own=asked.own, seed=asked.seed)
    if asked != plain:
        other = next(name for name in asked.__struct_fields__ if getattr(asked, name) != getattr(plain, name))
        raise UsageError(f"{other} is not asked of an engine: it runs whole sequences in one process",
                         "leave it out, or record the release without --engine")


def _job(name: str, plugin: EntryPoint, wanted: Wanted, asked: Asked, tokens: Tokens, out: Path) -> dict[str, Any]:
    """As `runtime.recording.inside` reads it, which is not imported here: it takes torch."""
    modules = () if asked.modules == Asked().modules else asked.modules
    kept = msgspec.structs.replace(asked, folder=str(out.resolve()), modules=modules)
    return {"engine": name, "plugin": plugin.value, "wanted": wanted, "tokens": tokens, "parent": os.getpid(),
            "record": {field: getattr(kept, field) for field in ("folder", "modules", "layers", "mode", "rows",
                                                                 "columns")}}


def _run(engine: Engine, plugin: EntryPoint, folder: Path, limit_s: float, progress: Progress) -> None:
    """Until it has ended. Raises what it refused with, or StageError."""
    log, start = folder / "log.txt", time.monotonic()
    with _started(engine, plugin.load(), folder, log) as process:
        while process.poll() is None:
            seconds = time.monotonic() - start
            progress.update(f"{engine.name}: {_last(log)}", seconds)
            if seconds > limit_s:
                raise StageError(f"{engine.name} is not done after {limit_s:.0f} s", "give fewer tokens", _end(log))
            time.sleep(_POLL)
    if (refusal := folder / "refusal.json").exists():
        told = from_json(refusal.read_bytes(), dict[str, str])
        kind = getattr(errors, told["kind"])
        raise kind(told["message"], told["hint"], *([_end(log)] if issubclass(kind, StageError) else []))
    if process.returncode:
        raise StageError(f"{engine.name} ended with {process.returncode}", "the end of its log is below; "
                         f"{engine.python} needs the engine, numpy and msgspec", _end(log))


@contextmanager
def _started(engine: Engine, plugin: InsideEngine, folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Its process, which finds this package by a folder that holds nothing else: what else is installed beside it must
    not come before what the engine was installed with."""
    (folder / "path").mkdir()
    (folder / "path" / "dayzero").symlink_to(Path(dayzero.__file__).parent)
    paths = [str(folder / "path"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**plugin.defaults, **os.environ, **plugin.variables, "PYTHONPATH": os.pathsep.join(paths),
                   "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    try:
        with log.open("wb") as file:
            process = subprocess.Popen([engine.python, "-m", _RUNS, str(folder)], env=environment, cwd=folder,
                                       stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                       start_new_session=True)
    except OSError as error:
        raise UsageError(f"{engine.python} cannot be started: {error.strerror}", "give --python the Python of the "
                         "environment that has the engine") from None
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """And whatever it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM if process.poll() is None else signal.SIGKILL)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end(log: Path) -> str:
    return log.read_bytes()[-_LOG_BYTES:].decode(errors="replace").strip()


def _last(log: Path) -> str:
    """The newest line of its log."""
    lines = _end(log).splitlines() if log.exists() else []
    return one_line(lines[-1], 80) if lines else "starting"
