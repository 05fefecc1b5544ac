"""Generated tokens against the reference's, and the run against itself."""

from __future__ import annotations

from pathlib import Path

from dayzero.runtime.assignment import Generated
from dayzero.runtime.launch import results
from dayzero.schema import Check, LayoutRun, Output

from .reference import FACTOR, Reference


def check_tokens(run: LayoutRun, truth: Reference) -> list[Check]:
    """One check for each prompt: the same tokens, or a first difference where the reference was nearly undecided.

    Up to the first difference both saw the same text. Two tokens can swap only when the reference has them closer than
    the error that the dtype makes in such margins, as one process in the run's dtype shows it.
    """
    return [_tokens(f"{run.layout.text}: prompt {number + 1}, generated tokens", output, truth.generated[number], truth)
            for number, output in enumerate(run.outputs)]


def _tokens(name: str, output: Output, reference: Generated, truth: Reference) -> Check:
    pairs = zip(output.tokens, reference.tokens, strict=False)
    step = next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    limit = truth.margin_tolerance
    source = (f"margin of the reference at the first different token: at most {FACTOR:g} times the largest error that "
              f"one process in {truth.dtype} makes in the margin between the two likeliest tokens")
    if step is None:
        same = len(output.tokens) == len(reference.tokens)
        detail = f"all {len(output.tokens)} tokens are the same" if same else "one stops before the other"
        return Check(name=name, tolerance=limit, source=source, observed=0.0, passed=same, detail=detail)
    margin = reference.margins[step]
    detail = (f"token {step + 1} is {output.tokens[step]}, the reference's {reference.tokens[step]} "
              f"was {margin:.3g} ahead")
    return Check(name=name, tolerance=limit, source=source, observed=margin, passed=margin <= limit, detail=detail)


def check_repeat(run: LayoutRun) -> Check:
    """Two runs with one seed gave the same bits."""
    return Check(name=f"{run.layout.text}: repeated with the same seed", tolerance=0.0, source="bits are compared",
                 observed=float(not run.repeat_identical), passed=run.repeat_identical,
                 detail="SHA-256 over all tokens and logits of both runs")


def check_agreement(run: LayoutRun, folder: Path) -> list[Check]:
    """Ranks of one tensor-parallel group hold the same activations, to the bit. No check without such a group."""
    if run.layout.tp == 1:
        return []
    digests = [each.passes[0].dump_digest for each in results((folder / run.dump).parent, run.world_size)]
    groups = [digests[start:start + run.layout.tp] for start in range(0, len(digests), run.layout.tp)]
    odd = sum(digest != group[0] for group in groups for digest in group)
    return [Check(name=f"{run.layout.text}: ranks of a group agree", tolerance=0.0, source="bits are compared",
                  observed=float(odd), passed=odd == 0, detail="SHA-256 over every layer's output")]
