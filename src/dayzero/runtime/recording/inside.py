"""Records the model of an engine in the process that runs it: `python -m dayzero.runtime.recording.inside FOLDER`.

    FOLDER/job.json       what to record
    FOLDER/refusal.json   written when it cannot be done for a reason that its user can change

It runs in the Python that has the engine, whose environment may be another one than this program's: nothing is imported
here but what recording needs.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

import msgspec
import numpy as np
import torch

from dayzero.backends.process import die_with_parent
from dayzero.errors import DayzeroError, StageError
from dayzero.runtime.assignment import Record
from dayzero.runtime.golden.logprobs import Logprobs, entries
from dayzero.schema import Noun, from_json, to_json
from dayzero.targets.inside import ENTRY_POINTS, InsideEngine, RunningModel, Told, Wanted

from .context import Recording, record
from .sampling import Sampling
from .stream import Taken

JOB, REFUSAL = "job.json", "refusal.json"


class Job(Noun, frozen=True, kw_only=True):
    """What to record."""

    engine: str
    """Name of the engine."""
    plugin: str
    """Where its plug-in is: module:attribute."""
    wanted: Wanted
    """How it is started."""
    record: Record
    """What is kept."""
    tokens: tuple[tuple[int, ...], ...]
    """Of each sequence."""
    parent: int
    """Process that waits for this one, with which it ends."""


class Refusal(Noun, frozen=True, kw_only=True):
    """A DayzeroError on its way to the process that waits."""

    kind: str
    """Name of its class."""
    message: str
    """What is wrong."""
    hint: str
    """What to do."""


def main(folder: Path) -> None:
    """Do the job of a folder."""
    job = from_json((folder / JOB).read_bytes(), Job)
    die_with_parent(job.parent)
    plugin: InsideEngine = EntryPoint(job.engine, job.plugin, ENTRY_POINTS).load()
    try:
        with plugin.running(job.wanted) as running:
            _record(running, job)
    except DayzeroError as error:
        (folder / REFUSAL).write_bytes(to_json(
            Refusal(kind=type(error).__name__, message=error.message, hint=error.hint)))


def _record(running: RunningModel, job: Job) -> None:
    kept = job.record
    with record(running.module, kept.folder, modules=kept.modules or "all", layers=kept.layers, mode=kept.mode,
                sampling=Sampling(rows=kept.rows, columns=kept.columns), root=Path(job.wanted.root),
                engine=f"{job.engine} {running.version}") as recording:
        for number, tokens in enumerate(job.tokens):
            recording.expect([number])
            told = running.feed(tokens)
            if recording.recorder.last is None:
                raise StageError(f"{job.engine} did not call the module of its model",
                                 "it runs compiled code or another process: turn that off with --engine-options")
            if told is not None:
                _keep(recording, number, tokens, told, job.wanted.top)


def _keep(recording: Recording, number: int, tokens: tuple[int, ...], told: Told, top: int) -> None:
    """What the engine said itself, as a pass of its own."""
    ids, values = (np.full((len(tokens) - 1, top), fill) for fill in (-1, -np.inf))
    for row, likeliest in enumerate(told.likeliest):
        for column, (token, value) in enumerate(likeliest[:top]):
            ids[row, column], values[row, column] = token, value
    made, every = entries(number, np.array(tokens), Logprobs(np.array(told.logprobs), ids, values))
    recorder = recording.recorder
    opened = recorder.open(phase=made.phase, shape=made.shape, rows=made.rows, tokens=made.tokens)
    for entry, array in every:
        entry = msgspec.structs.replace(entry, pass_no=opened.number)
        recorder.stream.add(Taken(entry, partial(getattr, entry, "statistics"), torch.from_numpy(array), None))
    recorder.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
