"""What a gate tries, one check for each, in the order in which it narrows down what is wrong."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from dayzero.errors import NotPossible, StageError
from dayzero.progress import Progress
from dayzero.runtime.golden import noise_folders
from dayzero.schema import Layout, Release
from dayzero.schema.evaluation import Evaluation
from dayzero.schema.gate import Baseline, GateCheck

from .folder import BaselineFolder, digest_of

Outcome = Literal["pass", "fail", "inconclusive"]
Evaluate = Callable[[], Evaluation]
LENGTHS, NOISE, ALONE = (24, 40), 3, Layout()
"""Tokens of each sequence; perturbed runs that tell the noise; one process."""


@dataclass(frozen=True)
class Options:
    """What to try."""

    twin: bool = False
    """A miniature stands for the release: seconds, and no weights needed."""
    dtype: str = ""
    """Precision of the run: bf16, f16 or f32; empty: the release's."""
    layouts: tuple[Layout, ...] = ()
    """Beside one process."""
    relations: bool = True
    """Whether relations that need no reference are tried."""
    longest: int = 640
    """Longest prompt of these, in tokens."""
    own: bool = False
    """Whether the release's own code is to run."""
    seed: int = 0
    """Of tokens and of a miniature's weights."""


class Found(NamedTuple):
    """What came out."""

    checks: tuple[GateCheck, ...]
    digest: str
    scores: Evaluation | None


class Subject:
    """What is run: the release or its miniature, recorded as often as needed."""

    def __init__(self, release: Release, work: Path, options: Options, progress: Progress) -> None:
        self.release, self.work, self.options, self.progress = release, work, options, progress
        draw = random.Random(options.seed)
        self.tokens = tuple(tuple(draw.randrange(release.model.vocab_size) for _ in range(length))
                            for length in LENGTHS)

    @classmethod
    def of(cls, release: Release, work: Path, options: Options, progress: Progress) -> Subject:
        """Makes the miniature when one is asked for."""
        from dayzero.stages.read import read
        from dayzero.stages.twin import twin

        if options.twin:
            progress.update("making the twin")
            twin(release, work / "twin", seed=options.seed, progress=progress)
            release = read(str(work / "twin"), progress=progress)
        return cls(release, work, options, progress)

    def recorded(self, name: str, dtype: str, layout: Layout = ALONE, *, noise: int = 0, roundoff: str = "") -> Path:
        """A golden dump."""
        from dayzero.stages.check.recording import Asked, record_release

        out = self.work / name
        self.progress.update(f"recording {name}")
        record_release(self.release, self.tokens, out, Asked(
            layout=layout, dtype=dtype, noise=noise, noise_dtype=roundoff, own=self.options.own,
            seed=self.options.seed), progress=self.progress)
        return out

    def stored_reference(self) -> Path:
        """The reference with the noise of its own precision: what later references are compared with."""
        return self.recorded("stored", "f32", noise=NOISE, roundoff="f32")

    def noise(self) -> tuple[Path, ...]:
        """Correct runs in the precision of the runs, where the reference was recorded with them."""
        return tuple(noise_folders(self.work / "reference"))


def checks_of(subject: Subject, baseline: Baseline | None, kept: BaselineFolder, evaluate: Evaluate | None) -> Found:
    """All of them. What cannot be run is skipped, and told."""
    made = _Made()
    dtype = subject.options.dtype
    noise = kept.noise if baseline is not None else ()
    reference = subject.recorded("reference", "f32", noise=0 if noise else NOISE, roundoff=dtype)
    digest = digest_of(reference)
    if baseline is not None:
        with made.timed("f32, one process: as at the baseline") as check:
            check(*_as_before(reference, kept.reference, same=digest == baseline.digest))
    for layout in (ALONE, *subject.options.layouts):
        with made.timed(f"{dtype or 'own precision'}, {layout.text}: against the reference") as check:
            check(*_compared(reference, subject.recorded(f"run {layout.text}", dtype, layout), noise))
    with made.timed("one process, again: to the bit") as check:
        check(*_again(subject, dtype))
    if subject.options.relations:
        with made.timed("relations that need no reference") as check:
            check(*_relations(subject))
        if subject.options.layouts:
            with made.timed("drawn tokens, each layout: as in one process") as check:
                check(*_drawn(subject))
    scores = _scored(made, kept, baseline, evaluate)
    return Found(tuple(made.checks), digest, scores)


def outcome_of(checks: Sequence[GateCheck]) -> Outcome:
    """Nothing that passed proves nothing."""
    outcomes = {check.outcome for check in checks}
    if "fail" in outcomes:
        return "fail"
    return "inconclusive" if "inconclusive" in outcomes or "pass" not in outcomes else "pass"


class _Made:
    """Checks as they are made, with their time."""

    def __init__(self) -> None:
        self.checks: list[GateCheck] = []

    @contextmanager
    def timed(self, name: str) -> Iterator[Callable[..., None]]:
        started = time.monotonic()

        def add(outcome: str, detail: str = "", where: str = "", margin: float | None = None) -> None:
            self.checks.append(GateCheck(name=name, outcome=outcome, detail=detail, where=where,  # type: ignore[arg-type]
                                         margin=margin, seconds=time.monotonic() - started))

        try:
            yield add
        except NotPossible as reason:
            add("skipped", reason.reason)
        except StageError as error:
            add("fail", error.message)


def _as_before(reference: Path, stored: Path, *, same: bool) -> tuple[str, str, str, float | None]:
    if same:
        return "pass", "the same bits", "", 0.0
    outcome, detail, where, margin = _compared(stored, reference)
    return outcome, f"not the same bits; {detail}", where, margin


def _compared(reference: Path, candidate: Path, noise: Sequence[Path] = ()) -> tuple[str, str, str, float | None]:
    from dayzero.stages.check.compare import compare

    found = compare(reference, candidate, noise=noise)
    margin = max((check.observed / check.tolerance if check.tolerance else float(check.observed > 0) * 2
                  for check in found.checks), default=None)
    first = found.first_divergence
    if found.passed:
        return "pass", f"{len(found.checks)} checks, the nearest at {margin:.2f} of its tolerance", "", margin
    failed = sum(not check.passed for check in found.checks)
    told = f"{failed} of {len(found.checks)} checks fail; {found.suspicion}".rstrip("; ")
    return "fail", told, (first.module or first.place) if first else "", margin


def _again(subject: Subject, dtype: str) -> tuple[str, str]:
    first = digest_of(subject.work / f"run {ALONE.text}")
    same = digest_of(subject.recorded("run again", dtype)) == first
    return ("pass", "the same bits") if same else ("fail", "another run of the same gives other bits")


def _relations(subject: Subject) -> tuple[str, str, str, float | None]:
    from dayzero.stages.check.relations import relations

    verdict = relations(subject.release, longest=subject.options.longest, own=subject.options.own,
                        seed=subject.options.seed, progress=subject.progress)
    failed = [check for check in verdict.checks if not check.passed]
    left = f"; {len(verdict.not_made)} not tried" if verdict.not_made else ""
    if failed:
        return "fail", f"{failed[0].name}: {failed[0].observed:.3g} of {failed[0].tolerance:.3g}{left}", "", None
    return "pass", f"{len(verdict.checks)} hold{left}", "", None


def _drawn(subject: Subject) -> tuple[str, str]:
    from dayzero.stages.check.relations import drawn

    found = drawn(subject.release, subject.options.layouts, own=subject.options.own, seed=subject.options.seed,
                  progress=subject.progress)
    failed = next((check for check in found if not check.passed), None)
    return ("pass", found[0].detail) if failed is None else ("fail", f"{failed.name}: {failed.observed:g} are not")


def _scored(made: _Made, kept: BaselineFolder, baseline: Baseline | None, evaluate: Evaluate | None
            ) -> Evaluation | None:
    """One check for each metric that the baseline has too."""
    from dayzero.stages.check.tasks import compare_scores

    if evaluate is None:
        return None
    scores = None
    with made.timed("scores") as check:
        scores = evaluate()
        before = kept.scores() if baseline is not None else None
        if before is None:
            check("skipped", "the baseline has no scores" if baseline else "there is no baseline before this one")
            return scores
        for each in compare_scores(before, scores):
            made.checks.append(GateCheck(
                name=f"scores: {each.task}, {each.metric}", outcome=each.outcome,
                detail=f"{each.baseline:.4g} -> {each.candidate:.4g}, better by {each.difference:+.3g} "
                       f"({each.low:+.3g} to {each.high:+.3g}); {each.detail}"))
    return scores
