"""The stage: build a release's model without weights, run prefill and decode without values, and say what ran."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dayzero.errors import NotPossible, StageError, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.runtime.isolation import Limits
from dayzero.runtime.library import LIBRARY_ERRORS
from dayzero.schema import ModelSpec, Operation, OpGraph, Release

from . import child, rows, sizes
from .capture.captured import Captured
from .capture.step import Step
from .grouping import Grouped, group, symbols

if TYPE_CHECKING:
    import torch

    from .capture.runs import Runs


def trace(release: Release, *, batch: int = 1, tokens: int = 64, context: int = 64,
          towers: bool = False, trust: Limits | None = None, own: bool = False, python: Path | None = None,
          progress: Progress = SILENT) -> OpGraph:
    """Operators of a prefill of `batch` sequences of `tokens` tokens, and of one decode step of `batch` sequences that
    have `context` tokens in the cache; with `towers` also of each tower of a model that takes more than text, on one
    input of the size that its config states, as a phase of its own. No weights are needed. Code that the release brings
    along is executed with `trust` only, in a confined process under these limits; `own` says that this is that process.
    With `python` such a process is of another interpreter, which has another version of the library, whosever the code
    is.

    Raises NotPossible without torch or without a class for the model, UsageError for sizes below one and for those
    beyond all numbers, ReleaseError for absurd numbers of layers and for code of another repository, StageError when
    the model's code fails in prefill. A decode that fails is recorded in `missing`, and its phase is left out; so is
    what a kernel library would have to do that has no stand-in, and both phases when prefill needs it.
    """
    for name, size in (("batch", batch), ("tokens", tokens), ("context", context)):
        if size < 1:
            raise UsageError(f"{name} is {size}", f"give a {name} of at least 1")
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise NotPossible(f"{package} is not installed", "pip install 'dayzero[torch]'")
    runs_own = trust is not None and child.brings_code(release)
    if runs_own or python is not None:
        request = child.TraceRequest(release=release, batch=batch, tokens=tokens, context=context, towers=towers,
                                     own=runs_own)
        return child.trace_confined(request, trust or Limits(), python=python, progress=progress)
    progress.update("building the model without weights", 0, 4)
    from dayzero.runtime import stand_ins

    from . import branches, construct, layers
    from .capture.runs import Runs

    start = time.perf_counter()
    with construct.quiet(own=own):
        built = construct.build(release, own=own, towers=towers)
        model, runs = built.model, Runs(built.model, release.model)
        with stand_ins.fallbacks(model):
            captured = _run(runs, [Step("prefill", batch, tokens), Step("decode", batch, 1, context)], release.model,
                            progress)
            beside = _beside(model, runs, captured) if towers else []
            progress.update("finding what holds for any workload", 3, 4)
            operations = _operations(runs, captured, beside, release)
        tree = layers.Tree(model, runs.recorder.signatures)
    calls = tuple(row for run in [*captured, *beside] for row in rows.operators(run, runs.recorder.types, tree.shown))
    return sizes.told(OpGraph(
        parameters=construct.parameters(model),
        phases={run.phase: rows.totals(run, calls) for run in [*captured, *beside]},
        operators=calls, modules=tree.nodes, control_flow=branches.merged(runs.sites(), branches.seen(model)),
        missing=runs.missing(), layer_kinds=layers.layer_kinds(model, release.model, captured),
        source=built.source + "".join(f"; {note}" for note in runs.notes()),
        operations=operations, supplied=built.supplied, stand_ins=runs.stand_ins(),
        seconds=round(time.perf_counter() - start, 3)))


def _run(runs: Runs, steps: list[Step], model: ModelSpec, progress: Progress) -> list[Captured]:
    """The requested steps, the first of them a prefill, which must succeed unless it calls what has no stand-in: then
    there are none, as the others need its cache."""
    from dayzero.runtime.stand_ins import MissingStandIn

    from .capture.sites import raised_at

    captured: list[Captured] = []
    for step in steps:
        progress.update(f"tracing {step.phase}", len(captured) + 1, len(steps) + 2)
        try:
            captured.append(runs.run(step))
        except LIBRARY_ERRORS as error:
            if sizes.may_be_too_large(model, steps[0].batch, steps[0].tokens, steps[-1].context):
                raise sizes.too_large(steps[0].batch, steps[0].tokens, steps[-1].context) from error
            if not captured and not isinstance(error, MissingStandIn):
                file, line = raised_at(error)
                raise StageError(f"prefill cannot be traced: {runs.recorder.describe(error)} "
                                 f"({type(error).__name__} at {file}:{line})",
                                 "the model may need more than token ids, or its code has a fault there") from error
            runs.give_up(step, error)
            if not captured:
                break
    return captured


def _beside(model: torch.nn.Module, runs: Runs, captured: list[Captured]) -> list[Captured]:
    """All towers as one run; none where there are none."""
    from .capture import towers

    found = towers.run(model, runs, captured)
    return [towers.whole(found)] if found else []


def _operations(runs: Runs, captured: list[Captured], beside: list[Captured], release: Release
                ) -> tuple[Operation, ...]:
    """What the calls of the requested steps are, with axes that hold for other workloads: small runs show how they
    depend on it. A small run that fails shows nothing. What lies `beside` the text depends on no workload."""
    spec, types = release.model, runs.recorder.types
    tried: list[Grouped] = []
    for run in captured:
        for workload in symbols.probes(spec)[run.phase]:
            try:
                tried.append(group(runs.run(Step(run.phase, *workload), requested=False), types, spec))
            except LIBRARY_ERRORS:
                continue
    asked = [group(run, types, spec) for run in [*captured, *beside]]
    return symbols.operations(asked, tried, spec, _integers(release.config))


def _integers(config: object) -> Iterator[int]:
    """Whole numbers of a config and of what is nested in it."""
    if isinstance(config, int) and not isinstance(config, bool):
        yield config
    elif isinstance(config, (list, dict)):
        for value in config.values() if isinstance(config, dict) else config:
            yield from _integers(value)
