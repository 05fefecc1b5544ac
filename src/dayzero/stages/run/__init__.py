"""run: the release itself, in the layouts of the plan, on this machine. The work is in `dayzero.runtime`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from dayzero.errors import NotPossible
from dayzero.progress import SILENT, Progress
from dayzero.runtime.assignment import Assignment, Pass, gradient_rows
from dayzero.runtime.kept import kept
from dayzero.runtime.launch import LIMIT, launch
from dayzero.runtime.tokens import Tokens
from dayzero.runtime.weights import check_weights
from dayzero.schema import Budget, Layout, LayoutRun, Plan, Release, RunRecord, Target

from .contract import overview, to_contract
from .decoding import decoded
from .layouts import backend_of, check_possible, choose, planned_stages
from .limits import check_length, check_seed, check_time, check_tokens
from .record import environment, layout_run

__all__ = ["FOLDER", "PROMPTS", "overview", "run", "to_contract"]

FOLDER = "6-run"
"""Folder inside the run directory; one folder for each layout in it."""
PROMPTS = (
    "What is the capital of France? Tell me something about it.",
    "Write a short story about a robot.",
    "Explain how a rainbow forms.",
    "List the planets of the solar system.",
)
"""The fixed prompts."""
NEW_TOKENS = 32
"""Tokens to generate for each when nobody says how many."""
_REPEATS = 2
Stages = tuple[tuple[int, int], ...]
"""[first layer, end) of each pipeline stage."""


def run(release: Release, plan: Plan, target: Target, *, folder: Path, layouts: Sequence[Layout] | None = None,
        prompts: Sequence[str] | None = None, max_new_tokens: int = NEW_TOKENS, seed: int = 0, backend: str = "",
        stages: Stages = (), budgets: Sequence[Budget] = (), limit_s: float = LIMIT, progress: Progress = SILENT
        ) -> RunRecord:
    """Run `layouts`, or those that the target pins, or the plan's best; on `backend`, or where the target is. `stages`
    and `budgets` are of the first layout, for which another plan has been asked.

    Each is one launch of as many processes as it has ranks, which loads the weights as they are, times the first token
    of each prompt, generates all of them twice with the same seed, dumps every layer's output for `check`, and then
    dumps them in f32 too and takes the gradients of a small batch. Files go to `folder`/6-run/LAYOUT.

    Raises NotPossible when nothing can run here, UsageError for prompts that are empty or too long, ReleaseError for
    tokens that the model does not have, LayoutError for a layout that is larger than the cluster, StoreError when the
    disk is full, StageError when a rank dies or does not end within `limit_s` seconds.
    """
    check_weights(release)
    name = backend or backend_of(target)
    dtype = check_possible(release, target, name)
    check_seed(seed)
    chosen, skipped = choose(plan, target, layouts or (), name)
    _remove_unfinished(folder / FOLDER)
    texts = tuple(prompts or PROMPTS)
    runs: list[LayoutRun] = []
    facts: dict[str, str] = {}
    progress.update("reading the tokenizer")
    with Tokens(str(release.root)) as tokens:
        ids = tokens.encode(texts)
        check_tokens(release.model, ids, tokens.ends)
        widest = -(-target.workload.concurrency // min(layout.dp for layout in chosen))
        check_length(release.model, ids, max_new_tokens, widest, chosen=bool(prompts) or max_new_tokens > NEW_TOKENS)
        check_time(release.model, ids, chosen, target, limit_s)
        for layout in chosen:
            assignment = Assignment(
                root=str(Path(str(release.root)).resolve()), layout=layout, prompts=ids, max_new_tokens=max_new_tokens,
                passes=(Pass(dtype=dtype, first_tokens=True, generate=_REPEATS, dump=True),
                        Pass(dtype="f32", gradients=True, dump=dtype != "f32")),
                batch=-(-target.workload.concurrency // layout.dp), seed=seed, gradient_rows=gradient_rows(chosen),
                stages=stages or planned_stages(plan, layout), budgets=tuple(budgets), backend=name)
            place = f"{FOLDER}/{layout.text.replace('=', '').replace(' ', '-')}"
            try:
                launched = launch(assignment, folder / place, limit_s=limit_s, progress=progress)
            except NotPossible as outcome:
                skipped[layout.text] = outcome.reason
                continue
            runs.append(layout_run(launched, assignment, plan, texts, tokens, dump=f"{place}/dump",
                                   files=kept(folder / place), said=decoded(release.model, dtype)))
            facts |= environment(launched)
    if not runs:
        raise NotPossible("; ".join(f"{text}: {reason}" for text, reason in skipped.items()),
                          "choose a layout with --layout")
    facts |= {f"not run: {text}": reason for text, reason in skipped.items()}
    return RunRecord(runs=tuple(runs), prompts=texts, max_new_tokens=max_new_tokens, environment=facts)


def _remove_unfinished(folder: Path) -> None:
    """What launches left that were killed together with the command."""
    for left in folder.glob(".*.part"):
        shutil.rmtree(left, ignore_errors=True)
