"""Generated tokens against the reference's, and the run against itself."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

import numpy as np

from dayzero.errors import StoreError
from dayzero.runtime.assignment import Generated
from dayzero.runtime.dumps import AGAIN
from dayzero.runtime.kept import changed
from dayzero.runtime.launch import results
from dayzero.schema import Check, LayoutRun

from .measure import FAR, judged
from .reference import FACTOR, Reference


def check_tokens(run: LayoutRun, truth: Reference) -> list[Check]:
    """One check for each prompt: the same tokens, or a first difference where the reference was nearly undecided.

    Up to the first difference both saw the same text. Two tokens can swap only when the reference has them closer than
    the error that the dtype makes in such margins, as one process in the run's dtype shows it.
    """
    outputs = dict(enumerate(run.outputs))
    return [_tokens(f"{run.layout.text}: prompt {number + 1}, generated tokens",
                    outputs[number].tokens if number in outputs else (), reference, truth)
            for number, reference in sorted(truth.generated.items())]


def _tokens(name: str, ours: tuple[int, ...], reference: Generated, truth: Reference) -> Check:
    limit, theirs = truth.margin_tolerance, reference.tokens
    source = (f"margin of the reference at the first different token: at most {FACTOR:g} times the largest error that "
              f"one process in {truth.dtype} makes in the margin between the two likeliest tokens")
    step = next((index for index, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    if step is not None:
        margin = reference.margins[step]
        detail = f"token {step + 1} is {ours[step]}, the reference's {theirs[step]} was {margin:.3g} ahead"
        return judged(name, margin, limit, source, detail)
    same = len(ours) == len(theirs) > 0
    detail = (f"all {len(ours)} tokens are the same" if same else
              f"{len(ours)} tokens were generated, {len(theirs)} by the reference")
    detail += "" if isfinite(limit) else "; logits are no numbers"
    return judged(name, 0.0 if same else FAR, limit, source, detail)


def check_repeat(run: LayoutRun) -> Check:
    """Two runs with one seed gave the same bits."""
    return judged(f"{run.layout.text}: repeated with the same seed", float(not run.repeat_identical), 0.0,
                  "bits are compared", "SHA-256 over all tokens and logits of both runs")


def check_agreement(run: LayoutRun, folder: Path) -> list[Check]:
    """Ranks of one tensor-parallel group hold the same activations, to the bit. No check without such a group."""
    if run.layout.tp == 1:
        return []
    digests = [tuple(one.dump_digest for one in each.passes)
               for each in results((folder / run.dump).parent, run.world_size)]
    groups = [digests[start:start + run.layout.tp] for start in range(0, len(digests), run.layout.tp)]
    odd = sum(digest != group[0] or not any(digest) for group in groups for digest in group)
    return [judged(f"{run.layout.text}: ranks of a group agree", float(odd), 0.0, "bits are compared",
                   "SHA-256 over all that was dumped")]


def not_made(run: LayoutRun, folder: Path, *, gradients: bool) -> dict[str, str]:
    """{comparison that was not made: why}."""
    because = _without_f32(run) or "the run dumped none"
    found = {}
    if run.dtype != "f32" and not any((folder / run.dump).glob("f32-rank-*.safetensors")):
        found[f"{run.layout.text} in f32: places of the model"] = because
    if not gradients:
        found[f"{run.layout.text}: gradients"] = because
    return found


def check_logits(truth: Reference) -> Check:
    """The reference tells tokens apart: any run is as good as a model that gives every token the same logit, or every
    text the same logits."""
    logits = [truth.dump.read(prompt, "logits") for prompt in truth.dump.prompts]
    flat = sum(int((each.max(axis=1) == each.min(axis=1)).sum()) for each in logits)
    rows = np.concatenate([each.reshape(-1, each.shape[-1]) for each in logits])
    same = len(rows) > 1 and bool((rows == rows[0]).all())
    detail = ("all positions of all prompts have the same logits" if same else
              f"{flat} of {len(rows)} positions have the same logit for every token")
    return judged("reference: positions whose logits tell nothing", float(len(rows) if same else flat), 0.0,
                  "a model gives tokens different logits, and other texts other ones", detail)


def check_kept(run: LayoutRun, folder: Path) -> list[Check]:
    """What the run left is what it wrote. Raises StoreError when it is gone, or not all of it was recorded."""
    if absent := sorted(_always_kept(run) - run.kept.keys()):
        raise StoreError(f"the record of {run.layout.text} has no digest of {absent[0]}", AGAIN)
    odd = changed((folder / run.dump).parent, run.kept)
    return [judged(f"{run.layout.text}: files as the run wrote them", float(len(odd)), 0.0, "SHA-256 of each file",
                   f"changed: {', '.join(odd)}" if odd else f"{len(run.kept)} files")]


def _always_kept(run: LayoutRun) -> set[str]:
    """Files that every run leaves: what it was told, what each rank did, and the dumps of the first rank of each tp
    group, without those of a pass that did not fit into memory."""
    speakers = range(0, run.world_size, run.layout.tp)
    first = range(0, run.layout.tp * run.layout.pp, run.layout.tp)
    files = {"assignment.json", *(f"rank-{rank}/result.json" for rank in range(run.world_size))}
    files |= {f"dump/{run.dtype}-rank-{rank}.safetensors" for rank in speakers}
    if _without_f32(run) is None:
        files |= {f"dump/gradients-rank-{rank}.safetensors" for rank in first}
        files |= {f"dump/f32-rank-{rank}.safetensors" for rank in speakers if run.dtype != "f32"}
    return files


def _without_f32(run: LayoutRun) -> str | None:
    """Why there was no pass in f32; None when there was one."""
    return next((event for event in run.events if "no pass in f32" in event), None)
