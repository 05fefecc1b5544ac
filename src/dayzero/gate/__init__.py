"""Gate: whether a release still runs as it did when somebody last said that it was right.

    the release, or its twin ─ reference in f32 ─┬─ against the baseline's: what changed, and where it shows first
                                                 ├─ against each layout in the run's precision, and against itself again
                                                 ├─ relations that need no reference
                                                 └─ scores against the baseline's, where they were made

Everything is made anew in a folder that goes; the baseline is replaced only when it is asked for and all is well.
"""

from __future__ import annotations

import datetime
import tempfile
import time
from pathlib import Path

import msgspec

from dayzero.errors import NotPossible, StoreError, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.runtime.assignment import DTYPES
from dayzero.schema.gate import Baseline, GateResult

from .checks import Evaluate, Options, Subject, checks_of, outcome_of
from .folder import BaselineFolder, digest_of
from .identity import changes, identity
from .junit import junit
from .words import gate_table, to_contract

__all__ = ["BaselineFolder", "Options", "gate", "gate_table", "junit", "to_contract"]


def gate(source: str, folder: Path, options: Options, *, update: bool = False, evaluate: Evaluate | None = None,
         progress: Progress = SILENT) -> GateResult:
    """Try everything that `options` ask for, against the baseline in `folder` when there is one. `update`: store this
    as the baseline if nothing fails but the comparison with the one before. `evaluate`: gives the scores.

    Raises UsageError for a baseline of another release or an unknown dtype, StoreError for a folder that is none,
    NotPossible when the release cannot be run here.
    """
    from dayzero.stages.read import read

    if options.dtype and options.dtype not in DTYPES:
        raise UsageError(f"unknown dtype {options.dtype!r}", f"choose one of {', '.join(DTYPES)}")
    started, kept = time.monotonic(), BaselineFolder(folder)
    release = read(source, progress=progress)
    if release.root is not None and folder.resolve().is_relative_to(Path(release.root).resolve()):
        raise UsageError(f"the baseline folder {folder} lies in the release", "give a folder outside of it")
    before = _fitting(_before(kept, update), release.name, options, update)
    if update:
        kept.check_writable()
    elif before is not None:
        kept.check_whole(before)
    with tempfile.TemporaryDirectory(prefix="dayzero-gate-") as work:
        subject = Subject.of(release, Path(work), options, progress)
        now = identity(release if release.root else subject.release, progress)
        found = checks_of(subject, None if update else before, kept, evaluate)
        outcome = outcome_of(found.checks)
        stored = update and outcome != "fail"
        if stored:
            stored_reference = subject.stored_reference()
            kept.store(Baseline(made=_now(), release=release.name, twin=options.twin, seed=options.seed, identity=now,
                                digest=digest_of(stored_reference), dtype=options.dtype), stored_reference,
                       subject.noise(), found.scores)
    result = GateResult(
        release=release.name, outcome=outcome, checks=found.checks, baseline=before.made if before else "",
        changed=changes(before.identity, now) if before else (), identity=now, made=_now(), stored=stored,
        seconds=time.monotonic() - started)
    return _noted(kept, result)


def _noted(kept: BaselineFolder, result: GateResult) -> GateResult:
    """A folder that cannot be written is good enough to compare with."""
    try:
        kept.note(result)
    except (StoreError, OSError) as error:
        return msgspec.structs.replace(result, not_noted=str(error))
    return result


def _before(kept: BaselineFolder, update: bool) -> Baseline | None:
    """A damaged one is nothing to compare with, but may be replaced."""
    try:
        return kept.baseline()
    except StoreError:
        if update:
            return None
        raise


def _fitting(baseline: Baseline | None, name: str, options: Options, update: bool) -> Baseline | None:
    """Raises NotPossible without a baseline unless this becomes one, UsageError for one of something else."""
    if baseline is None:
        if not update:
            raise NotPossible("there is no baseline to compare with", "make one from a run that is right: --update")
        return None
    if baseline.release != name:
        raise UsageError(f"the baseline is of {baseline.release}, not of {name}", "give another folder")
    if not update and (baseline.twin, baseline.seed, baseline.dtype) != (options.twin, options.seed, options.dtype):
        precision = baseline.dtype or "the release's own precision"
        made = f"{'with' if baseline.twin else 'without'} --twin, seed {baseline.seed}, {precision}"
        raise UsageError(f"the baseline was made {made}", "use the same options, or make it again with --update")
    return baseline


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
