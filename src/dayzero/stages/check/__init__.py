"""check: whether what ran is the released model. The reference is one process in f32; comparing needs numpy only."""

from __future__ import annotations

from pathlib import Path

from dayzero.errors import NotPossible, StoreError, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.runtime.dumps import AGAIN, layer_number
from dayzero.runtime.launch import LIMIT
from dayzero.schema import Check, Divergence, LayerError, Release, RunRecord, Verdict

from .contract import overview, to_contract
from .files import check_files
from .gradients import check_gradients
from .layers import comparisons, earlier, first_divergence
from .measure import judged
from .outputs import check_agreement, check_kept, check_repeat, check_tokens, not_made
from .reference import run_reference

__all__ = ["FOLDER", "check", "overview", "to_contract"]

FOLDER = "7-check"
"""Folder inside the run directory."""


def check(release: Release, record: RunRecord, *, folder: Path, reference: Release | None = None,
          limit_s: float = LIMIT, progress: Progress = SILENT) -> Verdict:
    """Compare every layout of a record with `reference`, or with the release itself, run by one process in f32.

    Raises NotPossible when the reference has no weights, StoreError when the dumps of the run are gone, UsageError when
    the reference is another model, StageError when its process dies or does not end within `limit_s` seconds.
    """
    source = reference or release
    if not source.has_weights or source.root is None:
        raise NotPossible("no weights: the reference has names and shapes only", "get the weights of the release")
    if other := _other_model(release, source):
        raise UsageError(f"the reference {source.name} is another model: {other}",
                         "give the same release, as it was published, with --reference")
    _check_record(record, folder)
    files = check_files(release, source, progress)
    kept = [check for run in record.runs for check in check_kept(run, folder)]
    truth = run_reference(source, record, folder, FOLDER, limit_s=limit_s, progress=progress)
    checks, errors, left = [*files.checks, *kept], list[LayerError](), dict(files.not_made)
    divergence: Divergence | None = None
    for run in record.runs:
        progress.update(f"comparing {run.layout.text}")
        for layers, source_of_tolerance in comparisons(run, folder, truth):
            errors += layers
            checks += [_check(each, source_of_tolerance) for each in layers]
            divergence = divergence or first_divergence(layers)
        gradients = check_gradients(run, folder, truth)
        checks += [*check_tokens(run, truth), check_repeat(run), *check_agreement(run, folder), *gradients]
        left |= not_made(run, folder, gradients=bool(gradients))
    return Verdict(checks=tuple(checks), layers=tuple(errors), first_divergence=earlier(files.divergence, divergence),
                   reference=f"{'the same files' if reference is None else source.name}, one process, f32",
                   not_made=left)


def _check_record(record: RunRecord, folder: Path) -> None:
    """Raises StoreError for a record of nothing, UsageError for prompts without a token: nothing can be compared."""
    if not record.runs or not record.prompts:
        raise StoreError(f"the record in {folder} has no {'prompts' if record.runs else 'runs'}", AGAIN)
    for run in record.runs:
        if empty := [number + 1 for number, count in enumerate(run.prompt_tokens) if not count]:
            raise UsageError(f"prompt {empty[0]} has no tokens: nothing can be compared", "give another with --prompt")


def _other_model(release: Release, reference: Release) -> str:
    """How the reference's sizes differ; empty when its outputs can be compared."""
    sizes = {"hidden size": (release.model.hidden_size, reference.model.hidden_size),
             "vocabulary": (release.model.vocab_size, reference.model.vocab_size),
             "layers": (len(release.model.layers), len(reference.model.layers))}
    return ", ".join(f"{name} {theirs} instead of {ours}" for name, (ours, theirs) in sizes.items() if ours != theirs)


def _check(error: LayerError, source: str) -> Check:
    what = "addition" if layer_number(error.place) is not None else "output"
    return judged(f"{error.layout}: {error.place} {what}, relative L2", error.relative_l2, error.tolerance, source,
                  f"largest difference {error.max_abs:.3g}, cosine {error.cosine:.6f}")
