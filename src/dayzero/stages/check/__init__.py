"""check: whether what ran is the released model. The reference is one process in f32; comparing needs numpy only."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dayzero.errors import StoreError, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.runtime.assignment import BYTES
from dayzero.runtime.dumps import AGAIN, layer_number
from dayzero.runtime.launch import LIMIT
from dayzero.runtime.weights import check_weights
from dayzero.schema import Check, Divergence, LayerError, LayoutRun, Release, RunRecord, Verdict
from dayzero.schema.store import refuse_link

from .config import check_config, check_sizes
from .contract import overview, to_contract
from .files import check_files, same_files
from .gradients import check_gradients
from .layers import comparisons, earlier, first_divergence
from .measure import judged
from .outputs import check_agreement, check_kept, check_logits, check_repeat, check_tokens, not_made
from .reference import Reference, assignment_of, run_reference
from .tokenizer import check_tokenizer

__all__ = ["FOLDER", "check", "overview", "to_contract"]

FOLDER = "7-check"
"""Folder inside the run directory."""


def check(release: Release, record: RunRecord, *, folder: Path, reference: Release | None = None,
          limit_s: float = LIMIT, progress: Progress = SILENT) -> Verdict:
    """Compare every layout of a record with `reference`, or with the release itself, run by one process in f32.

    A reference of another size fails, and is not run. Raises NotPossible when the reference has no weights, StoreError
    when what the run left is gone or is not that of a run, StageError when the reference's process dies or does not end
    within `limit_s` seconds.
    """
    source = reference or release
    check_weights(source)
    _check_record(record, folder)
    kept = [check for run in record.runs for check in check_kept(run, folder)]
    files = check_files(release, source, progress)
    beside, left = _beside(release, source, record, folder)
    sizes = check_sizes(release, source)
    checks, left = [*files.checks, *sizes, *beside, *kept], files.not_made | left
    label = f"{'the same files' if same_files(release, source) else source.name}, one process, f32"
    if sizes:
        return Verdict(checks=tuple(checks), layers=(), first_divergence=files.divergence, reference=label,
                       not_made=left | {"places of the model, tokens and gradients": "the reference has other sizes"})
    truth = run_reference(source, record, folder, FOLDER, limit_s=limit_s, progress=progress)
    checks.append(check_logits(truth))
    errors, divergence = list[LayerError](), None
    for run in record.runs:
        progress.update(f"comparing {run.layout.text}")
        found = _compared(run, folder, truth)
        checks, errors, left = checks + found.checks, errors + found.layers, left | found.not_made
        divergence = divergence or found.divergence
    return Verdict(checks=tuple(checks), layers=tuple(errors), first_divergence=earlier(files.divergence, divergence),
                   reference=label, not_made=left, needless=files.needless)


class _Compared(NamedTuple):
    """One layout against the reference."""

    checks: list[Check]
    layers: list[LayerError]
    divergence: Divergence | None
    not_made: dict[str, str]


def _compared(run: LayoutRun, folder: Path, truth: Reference) -> _Compared:
    checks, errors = list[Check](), list[LayerError]()
    divergence: Divergence | None = None
    for layers, source_of_tolerance in comparisons(run, folder, truth):
        errors += layers
        checks += [_check(each, source_of_tolerance) for each in layers]
        divergence = divergence or first_divergence(layers)
    gradients = check_gradients(run, folder, truth)
    checks += [*check_tokens(run, truth), check_repeat(run), *check_agreement(run, folder), *gradients]
    return _Compared(checks, errors, divergence, not_made(run, folder, gradients=bool(gradients)))


def _beside(release: Release, source: Release, record: RunRecord, folder: Path) -> tuple[list[Check], dict[str, str]]:
    """Checks of what lies beside the weights, and those that were not made; none when the files are the same."""
    if same_files(release, source):
        return [], {}
    config, left = check_config(release, source)
    ran = [assignment_of(run, folder).prompts for run in record.runs]
    tokenizer, not_tokenised = check_tokenizer(release, source, record.prompts, ran)
    return [*config, *tokenizer], left | not_tokenised


def _check_record(record: RunRecord, folder: Path) -> None:
    """Raises StoreError for a record of nothing, of a dtype that no run has, or of files elsewhere; UsageError for
    prompts without a token: nothing can be compared."""
    if not record.runs or not record.prompts:
        raise StoreError(f"the record in {folder} has no {'prompts' if record.runs else 'runs'}", AGAIN)
    refuse_link(folder / FOLDER)
    home = folder.resolve()
    for run in record.runs:
        if run.dtype not in BYTES:
            raise StoreError(f"the record in {folder} has the unknown dtype {run.dtype!r}", AGAIN)
        place = home / run.dump
        if place.resolve() != place or not place.is_relative_to(home):
            raise StoreError(f"the record in {folder} leads to another place: {run.dump!r}", AGAIN)
        if empty := [number + 1 for number, count in enumerate(run.prompt_tokens) if not count]:
            raise UsageError(f"prompt {empty[0]} has no tokens: nothing can be compared", "give another with --prompt")


def _check(error: LayerError, source: str) -> Check:
    what = "addition" if layer_number(error.place) is not None else "output"
    return judged(f"{error.layout}: {error.place} {what}, relative L2", error.relative_l2, error.tolerance, source,
                  f"largest difference {error.max_abs:.3g}, cosine {error.cosine:.6f}")
