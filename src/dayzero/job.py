"""A job: one release on one target, the run directory that holds its results, and how one stage is made.

The list of stages is in pipeline.py; nothing here knows what a stage does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dayzero.errors import NotPossible, StageError, StoreError
from dayzero.progress import SILENT, Progress
from dayzero.schema import Layout, digest
from dayzero.schema.store import Artifact, RunDirectory, Status, refuse_link

if TYPE_CHECKING:
    from dayzero.runtime.isolation import Limits

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user chose, apart from release and target. Each stage's file depends on the options that it uses."""

    revision: str | None = None
    """Revision of a hub id."""
    metadata_only: bool = False
    """Read headers from the hub, no weights."""
    batch: int = 1
    """Sequences in a trace."""
    tokens: int | None = None
    """New tokens of each sequence in a traced prefill; None: the workload's."""
    context: int | None = None
    """Tokens in the cache of a traced decode step; None: the workload's."""
    values: bool = False
    """Preflight reads the values of small tensors too."""
    declared: bool = True
    """Preflight compares the tensors with the model that the library builds, if it can build it here."""
    trust: Limits | None = None
    """Limits under which code that the release brings along may run, confined; None: it does not run."""
    select: tuple[str, ...] = ()
    """Rules of preflight, by name or by prefix; empty: all."""
    ignore: tuple[str, ...] = ()
    """Rules of preflight to leave out."""
    top: int = 20
    """Layouts that a plan keeps."""
    explain: tuple[Layout, ...] = ()
    """Layouts that it keeps too, whatever their rank."""
    smallest: bool = False
    """Whether it looks for the smallest cluster that works, also where this one does."""
    layouts: tuple[Layout, ...] = ()
    """Layouts to run; empty: the plan's best."""
    plan: str | None = None
    """File or run directory with the plan to run by; None: the one that is made for the target."""
    backend: str = ""
    """Kind of device that a run computes on; empty: the target's."""
    prompts: tuple[str, ...] = ()
    """Prompts to generate from; empty: the fixed set."""
    max_new_tokens: int = 32
    """Tokens to generate for each prompt."""
    seed: int = 0
    """Seed of everything random."""
    reference: str | None = None
    """Release that `check` compares with; None: the release itself, in one process."""


@dataclass(kw_only=True)
class Job:
    """One release on one target: what was asked for and what has been made so far."""

    source: str
    target: Path
    folder: RunDirectory
    options: Options = field(default_factory=Options)
    progress: Progress = SILENT
    made: dict[str, Artifact] = field(default_factory=dict)
    anew: bool = False
    """Whether the stage that is being made is made whatever is there: nothing remembered counts."""

    def get(self, stage: str, type_: type[T]) -> T | None:
        """What a stage made; None when it failed, is not possible or has not run."""
        artifact = self.made.get(stage)
        return artifact.load(type_) if artifact and artifact.status == "done" else None

    def need(self, stage: str, type_: type[T]) -> T:
        """What a stage made. Raises NotPossible when there is nothing."""
        noun, artifact = self.get(stage, type_), self.made.get(stage)
        if noun is not None:
            return noun
        if artifact is None:
            raise NotPossible(f"{stage} has not run", f"run {stage} first")
        failed = f"{stage} failed: " if artifact.status == "failed" else ""
        raise NotPossible(failed + artifact.reason.partition("\n")[0], artifact.hint)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step: what it needs, what it may use, and how its result is made."""

    number: int
    name: str
    noun: type
    make: Callable[[Job], Any]
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    identity: Callable[[Job], Any] = lambda job: None
    """What else the result depends on, outside the run directory."""
    beside: str | None = None
    """File or folder that the stage leaves beside its JSON; without it the stage is made again."""

    def inputs(self, job: Job) -> dict[str, str]:
        """Digest of everything that the result depends on."""
        digests = {name: job.made[name].digest for name in (*self.needs, *self.uses) if name in job.made}
        chosen = {name: getattr(job.options, name) for name in self.options}
        return {**digests, "options": digest(chosen), "identity": digest(self.identity(job))}


def up_to_date(known: Artifact | None, stage: Stage, job: Job, *, asked: bool = True) -> bool:
    """Whether what lies in the run directory is what would be made now. Unless the stage is one that was `asked` for,
    any choice of its options will do: a report is about the run that was made, whatever its prompts were."""
    if known is None or known.status != "done" or (stage.beside and not (job.folder.path / stage.beside).exists()):
        return False
    try:
        known.load(stage.noun)
    except StoreError:
        return False
    now = stage.inputs(job)
    return known.inputs == now or (not asked and known.inputs | {"options": now["options"]} == now)


def make_stage(job: Job, stage: Stage, *, force: bool = False, asked: bool = True) -> Artifact:
    """One stage's artifact, from the run directory if it is up to date, else made now.

    A stage that cannot run, or that ran and failed, is recorded as such. Raises DayzeroError for a wrong request; then
    the run directory holds what it held before.
    """
    if stage.beside and (beside := job.folder.path / stage.beside).is_dir():
        refuse_link(beside)
    inputs = stage.inputs(job)
    known = None if force else job.folder.load(stage.number, stage.name)
    if known and up_to_date(known, stage, job, asked=asked):
        job.made[stage.name] = known
        return known
    job.progress.update(stage.name)
    started = time.perf_counter()
    job.anew = force
    data, status, reason, hint = _outcome(job, stage)
    artifact = job.folder.save(stage.number, stage.name, data=data, inputs=inputs, status=status, reason=reason,
                               hint=hint, seconds=time.perf_counter() - started)
    job.made[stage.name] = artifact
    return artifact


def _outcome(job: Job, stage: Stage) -> tuple[Any, Status, str, str]:
    """What a stage makes, or why it makes nothing: (noun or None, status, reason, hint)."""
    try:
        return stage.make(job), "done", "", ""
    except NotPossible as outcome:
        return None, "not_possible", outcome.reason, outcome.hint
    except StageError as error:
        return None, "failed", f"{error.message}\n{error.log}".strip(), error.hint
