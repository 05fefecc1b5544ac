"""Gradients of a release: those of the loss, the same in every layout and with recomputed activations, and the same
way down over a few steps."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import msgspec

from dayzero.errors import LayoutError, NotPossible
from dayzero.progress import SILENT, Progress
from dayzero.runtime.assignment import Assignment, gradient_rows
from dayzero.runtime.dumps import Sketch, Sketches
from dayzero.runtime.launch import LIMIT, Launched, launch
from dayzero.runtime.weights import check_weights
from dayzero.schema import Check, Layout, Release, Verdict
from dayzero.schema.derivatives import Derivatives, Derived

from .gradients import errors_of
from .measure import judged

STEPS, SAMPLES, LENGTH, ROWS = 5, 24, 20, 4
"""Steps; parameters that finite differences are taken of; tokens of a sequence; sequences."""
SLOPE, RECOMPUTED, FACTOR, FLOOR = 0.02, 1e-5, 10.0, 2e-6
"""Relative errors that pass: of a slope by finite differences in f32, of a gradient with recomputed activations; a loss
may differ by `FACTOR` times the measured noise, at least by `FLOOR`."""
GRADIENT = 1e-4
"""And a gradient, likewise, at least by this: sums of f32 in another order, through all layers and steps."""
SHARED = "fsdp"


class Way(NamedTuple):
    """How ranks train."""

    layout: Layout = Layout()
    fsdp: bool = False
    """Whether replicas share the weights."""

    @classmethod
    def parse(cls, text: str) -> Way:
        """`dp=2,fsdp`, or a layout. Raises LayoutError."""
        words = [word.strip() for word in text.split(",")]
        found = cls(Layout.parse(",".join(word for word in words if word != SHARED)), SHARED in words)
        if not any(words):
            raise LayoutError("a layout is empty", "write it like tp=2,pp=1, or tp=1 for one device")
        if found.fsdp and found.layout.dp == 1:
            raise LayoutError(f"{text}: there are no replicas to share weights", f"write it like dp=2,{SHARED}")
        return found

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.layout.text} {SHARED}" if self.fsdp else self.layout.text


class _Trained(NamedTuple):
    derived: Derived
    """Of the rank that has the loss."""
    odd: dict[str, int]
    """Parameter -> values of its gradient that are no numbers, on any rank."""
    sketches: dict[str, Sketch]


ALONE = Way()


def derivatives(release: Release, *, ways: Sequence[Way] = (), steps: int = STEPS, samples: int = SAMPLES,
                own: bool = False, seed: int = 0, limit_s: float = LIMIT, progress: Progress = SILENT) -> Verdict:
    """One process first, then each way. Raises NotPossible without weights, or when one process cannot do it."""
    check_weights(release)
    rows = gradient_rows((ALONE.layout, *(way.layout for way in ways)))
    draw = random.Random(seed)
    prompts = tuple(tuple(draw.randrange(release.model.vocab_size) for _ in range(LENGTH)) for _ in range(ROWS))
    plain = Assignment(
        root=str(Path(str(release.root)).resolve()), layout=ALONE.layout, passes=(), prompts=prompts, max_new_tokens=1,
        batch=1, seed=seed, gradient_rows=max(ROWS, rows), own=own,
        derivatives=Derivatives(steps=steps, samples=samples, recompute=True))
    checks, left = list[Check](), dict[str, str]()
    with tempfile.TemporaryDirectory() as work:
        truth = _trained(launch(plain, Path(work) / "alone", limit_s=limit_s, progress=progress), Path(work) / "alone")
        checks += _finite(ALONE, truth)
        checks += _alone(truth.derived, left)
        for way in dict.fromkeys(way for way in ways if way != ALONE):
            asked = Derivatives(steps=steps, samples=0, rate=truth.derived.rate, fsdp=way.fsdp)
            progress.update(f"{way.text}: starting")
            folder = Path(work) / "ranks"
            try:
                found = _trained(launch(_with(plain, way.layout, asked), folder, limit_s=limit_s, progress=progress),
                                 folder)
            except NotPossible as reason:
                left[way.text] = reason.reason
                continue
            checks += _finite(way, found)
            checks += _same_way(way, found, truth)
    return Verdict(checks=tuple(checks), layers=(), first_divergence=None, not_made=left,
                   reference=f"{release.name} in f32, one process and finite differences, {plain.gradient_rows} "
                             "sequences")


def _with(plain: Assignment, layout: Layout, asked: Derivatives) -> Assignment:
    return msgspec.structs.replace(plain, layout=layout, derivatives=asked)


def _trained(found: Launched, folder: Path) -> _Trained:
    seen = [each.derived for each in found.ranks if each.derived is not None]
    odd = {name: count for each in seen for name, count in each.odd.items()}
    return _Trained(next((each for each in seen if each.losses), seen[0]), odd, Sketches(folder / "dump").values)


def _finite(way: Way, found: _Trained) -> Iterator[Check]:
    odd = found.odd
    yield judged(f"{way.text}: gradients that are no numbers", float(sum(odd.values())), 0.0, "every value is one",
                 f"of {len(odd)} parameters; first: {next(iter(odd))}" if odd else "")


def _alone(truth: Derived, left: dict[str, str]) -> Iterator[Check]:
    if not truth.losses:
        left["finite differences, recomputation, steps"] = "gradients are no numbers"
        return
    tried = [each for each in truth.sampled if not each.skipped]
    if tried:
        worst = max(tried, key=lambda each: _off(each.difference, each.gradient))
        yield judged("gradients against finite differences, largest relative error of a parameter",
                     _off(worst.difference, worst.gradient), SLOPE,
                     "central differences in f32, two steps, the nearest of three sizes",
                     f"{worst.name}: {worst.difference:.5g} against {worst.gradient:.5g}; {len(tried)} parameters")
    else:
        left["finite differences"] = "no gradient is large enough for a loss in f32 to show it"
    if truth.recomputed is None:
        left["recomputed activations"] = truth.why_not
    else:
        yield judged("gradients with recomputed activations, largest relative L2 of a parameter", truth.recomputed,
                     RECOMPUTED, "the same operations on the same values")
    if truth.absent:
        left["gradients of all parameters"] = f"none reaches {len(truth.absent)}: {', '.join(truth.absent[:3])}"
    yield judged("loss after the steps, over that before", truth.losses[-1] / truth.losses[0], 1.0,
                 f"small steps along the gradient lower the loss (learning rate {truth.rate:.3g})",
                 " ".join(f"{loss:.5g}" for loss in truth.losses))


def _same_way(way: Way, found: _Trained, truth: _Trained) -> Iterator[Check]:
    if not (found.derived.losses and truth.derived.losses):
        return
    yield _same_losses(way, found.derived.losses, truth.derived)
    yield _same_gradients(way, found.sketches, truth.sketches, len(truth.derived.losses))


def _same_losses(way: Way, ours: Sequence[float], truth: Derived) -> Check:
    gaps = [_off(mine, theirs) for mine, theirs in zip(ours, truth.losses, strict=False)]
    tolerance = max(FACTOR * truth.noise, FLOOR)
    return judged(f"{way.text}: losses of {len(truth.losses)} steps, largest relative difference",
                  max(gaps, default=1.0) if len(ours) == len(truth.losses) else 1.0, tolerance,
                  f"{FACTOR:g} times what a rounding error in the embedding changes ({truth.noise:.2g}), at least "
                  f"{FLOOR:g}", " ".join(f"{loss:.5g}" for loss in ours))


def _same_gradients(way: Way, ours: dict[str, Sketch], truth: dict[str, Sketch], steps: int) -> Check:
    """Of every parameter on every replica, in the first step in which one is off: all others follow it in the next."""
    apart = dict[tuple[str, int, int], tuple[float, float]]()
    for step in range(steps):
        right = _run(truth, f"plain/{step}/0/")
        noisy = errors_of(_run(truth, f"noisy/{step}/0/"), right)
        for replica in range(way.layout.dp):
            for name, error in errors_of(_run(ours, f"plain/{step}/{replica}/"), right).items():
                apart[name, step, replica] = error, max(FACTOR * noisy[name], GRADIENT)
    over = {each: error / limit for each, (error, limit) in apart.items() if error > limit}
    first = min((step for _, step, _ in over), default=-1)
    seen = {each: error / limit for each, (error, limit) in apart.items() if first in (-1, each[1])}
    worst = name, step, replica = max(seen, key=lambda each: seen[each])
    count = len({name for name, at, _ in over if at == first})
    where = f", replica {replica}" if way.layout.dp > 1 and not way.fsdp else ""
    return judged(f"{way.text}: gradients of all steps, relative L2 of the parameter that is off first", *apart[worst],
                  f"{FACTOR:g} times what a rounding error in the embedding changes, at least {GRADIENT:g}",
                  f"{name} in step {step + 1} of {steps}" + where
                  + (f"; {count} parameters are off in that step" if over else ""))


def _run(sketches: dict[str, Sketch], run: str) -> dict[str, Sketch]:
    return {name.removeprefix(run): each for name, each in sketches.items() if name.startswith(run)}


def _off(observed: float, expected: float) -> float:
    return abs(observed - expected) / abs(expected) if expected and isfinite(observed) else float(observed != expected)
