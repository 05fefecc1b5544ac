"""The stages in order, and adapt(): read this first.

    read -> target -> preflight -> trace -> plan -> run -> check -> emit -> report

Each stage is a function from nouns to a noun. Its result lies in the run directory as `N-stage.json`, with the digests
of what it was made from; it is made again only when one of them changed. A stage that cannot run here is recorded as
not possible with the reason, and what depends on it too.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dayzero import __version__
from dayzero.data.vocabulary import vocabulary
from dayzero.errors import DayzeroError, NotPossible, ReleaseError, StageError, UsageError, did_you_mean
from dayzero.job import Job, Options, Stage, make_stage, up_to_date
from dayzero.plan_file import placed
from dayzero.progress import SILENT, Progress
from dayzero.resolve import check_target, links_identity, read_engine, read_target, resolve_target
from dayzero.schema import (
    Bundle,
    Findings,
    OpGraph,
    Plan,
    Release,
    Results,
    RunRecord,
    StageResult,
    Target,
    Verdict,
    digest,
)
from dayzero.schema.consumption import Consumption
from dayzero.schema.coverage import Coverage
from dayzero.schema.store import RunDirectory, write_atomic, write_bundle


def _target(job: Job) -> Target:
    from dayzero.backends import measure_host

    return resolve_target(job.target, measured=lambda ranks: measure_host(ranks, job.progress))


def _read(job: Job) -> Release:
    from dayzero.stages.read import read

    return read(job.source, revision=job.options.revision, metadata_only=job.options.metadata_only,
                again=job.anew, progress=job.progress)


def _preflight(job: Job) -> Findings:
    from dayzero.stages.preflight import preflight

    release = job.need("read", Release)
    consumed, declared = _ledgers(release, job) if job.options.declared else (None, None)
    return preflight(release, job.need("target", Target), values=job.options.values, declared=declared,
                     consumed=consumed, select=job.options.select, ignore=job.options.ignore)


def _ledgers(release: Release, job: Job) -> tuple[Consumption, Coverage | None]:
    """What the library's code, or the trusted one of the release, reads of the config, and where the tensors go in its
    model; or why that is not known."""
    from dayzero.stages.trace import ledgers

    try:
        return ledgers(release, trust=job.options.trust, progress=job.progress)
    except (NotPossible, StageError) as outcome:
        reason = outcome.reason if isinstance(outcome, NotPossible) else outcome.message
        coverage = Coverage(impossible=reason) if release.tensors.count else None
        return Consumption(impossible=reason), coverage


def _trace(job: Job) -> OpGraph:
    from dayzero.stages.trace import graph_of

    release, workload = job.need("read", Release), job.need("target", Target).workload
    return graph_of(release, batch=job.options.batch, tokens=job.options.tokens or workload.input_tokens,
                    context=job.options.context or workload.input_tokens, trust=job.options.trust,
                    progress=job.progress)


def _plan(job: Job) -> Plan:
    from dayzero.stages.plan import plan

    return plan(job.need("read", Release).model, job.need("target", Target), graph=job.get("trace", OpGraph),
                top=job.options.top, explain=job.options.explain, smallest=job.options.smallest,
                progress=job.progress)


def _run(job: Job) -> RunRecord:
    from dayzero.stages.run import run

    release, asked = job.need("read", Release), job.options
    stages, budgets = placed(asked.plan, asked.layouts, len(release.model.layers), asked.backend)
    return run(release, job.need("plan", Plan), job.need("target", Target), folder=job.folder.path,
               layouts=asked.layouts or None, prompts=asked.prompts or None, max_new_tokens=asked.max_new_tokens,
               seed=asked.seed, backend=asked.backend, stages=stages, budgets=budgets, progress=job.progress)


def _check(job: Job) -> Verdict:
    from dayzero.stages.check import check
    from dayzero.stages.read import read

    reference = read(job.options.reference, progress=job.progress) if job.options.reference else None
    return check(job.need("read", Release), job.need("run", RunRecord), folder=job.folder.path, reference=reference,
                 progress=job.progress)


def _emit(job: Job) -> Bundle:
    from dayzero.stages.emit import emit

    bundle = emit(job.need("read", Release), job.need("plan", Plan), job.need("target", Target),
                  verdict=job.get("check", Verdict))
    write_bundle(job.folder.path / "8-bundle", bundle.files)
    return bundle


def _report(job: Job) -> Bundle:
    from dayzero.stages.report import report

    write_atomic(report_path(job), report(results(job)).encode())
    return Bundle(files={}, commands={}, notes=(f"written to {report_path(job).name}",))


def _file_identity(path: str | None) -> list[list[Any]]:
    """Name, size and time of change of every file that a local release or card consists of."""
    if path is None or not os.path.exists(path):
        return [[path]]
    if not os.path.isdir(path):
        return [_file_state(path)]
    configs = (os.path.join(path, name) for name in vocabulary().config.files)
    if not any(map(os.path.exists, configs)):  # no release: read says so, of whatever size it is
        return [[path]]
    files = sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return [_file_state(file) for file in files]


def _file_state(path: str) -> list[Any]:
    """Name, size and time of change; for what cannot be looked at the name and why."""
    name = os.fsencode(path).decode(errors="backslashreplace")
    try:
        status = os.stat(path)
    except OSError as error:
        return [name, str(error.strerror)]
    return [name, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _read_identity(job: Job) -> list[Any]:
    return [_file_identity(job.source), job.options.revision, job.options.metadata_only]


def _target_identity(job: Job) -> list[str]:
    """The file, its engine's profile, and the machine: a target may say that this one is to be measured. Raises
    TargetError."""
    return [read_target(job.target).decode(errors="replace"), digest(read_engine(job.target)), platform.node(),
            platform.machine(), str(os.cpu_count()), links_identity(job.target)]


def _packages_identity() -> list[list[Any]]:
    """State of the folders that packages are imported from: shipped code is checked against what is installed."""
    return [_file_state(entry) for entry in sys.path if entry and os.path.isdir(entry)]


def _preflight_identity(job: Job) -> list[Any]:
    """The packages, the chosen rules (a look at some of them stands for no look at all), and which waivers expired."""
    target, today = job.get("target", Target), datetime.date.today()
    expired = [waiver.expires < today for waiver in (target.waivers if target else ())]
    return [_packages_identity(), job.options.select, job.options.ignore, expired]


STAGES: tuple[Stage, ...] = (
    Stage(number=1, name="read", noun=Release, make=_read, identity=_read_identity),
    Stage(number=0, name="target", noun=Target, make=_target, identity=_target_identity),
    Stage(number=2, name="preflight", noun=Findings, make=_preflight, needs=("read", "target"),
          options=("values", "declared", "trust"), identity=_preflight_identity),
    Stage(number=3, name="trace", noun=OpGraph, make=_trace, needs=("read", "target"),
          options=("batch", "tokens", "context", "trust")),
    Stage(number=5, name="plan", noun=Plan, make=_plan, needs=("read", "target"), uses=("trace",),
          options=("top", "explain", "smallest")),
    Stage(number=6, name="run", noun=RunRecord, make=_run, needs=("read", "preflight", "plan", "target"),
          options=("layouts", "prompts", "max_new_tokens", "seed", "plan", "backend"), beside="6-run",
          identity=lambda job: _file_identity(job.options.plan)),
    Stage(number=7, name="check", noun=Verdict, make=_check, needs=("read", "run"), options=("reference",),
          identity=lambda job: _file_identity(job.options.reference)),
    Stage(number=8, name="emit", noun=Bundle, make=_emit, needs=("read", "plan", "target"), uses=("check",),
          beside="8-bundle"),
    Stage(number=9, name="report", noun=Bundle, make=_report, needs=("read", "target"),
          uses=("preflight", "trace", "plan", "run", "check", "emit"), beside="9-report.html"),
)
"""In the order in which they are made: a release that cannot be read is refused before a machine is measured, which
takes half a minute. Numbers name files; 4 is kept for tune."""


def stage_named(name: str) -> Stage:
    """The stage of that name. Raises UsageError."""
    names = [stage.name for stage in STAGES]
    if name not in names:
        raise UsageError(f"no stage is named {name!r}", f"{did_you_mean(name, names)}stages: {', '.join(names)}")
    return STAGES[names.index(name)]


def report_path(job: Job) -> Path:
    """Where the HTML report lies."""
    return job.folder.path / "9-report.html"


def open_job(source: str, target: Path | str, *, runs: Path | str = "runs", options: Options | None = None,
             progress: Progress = SILENT) -> Job:
    """A job in `runs/<release>@<target>/`. Nothing is read or written yet."""
    name = Path(source).resolve().name if os.path.exists(source) else source.replace("/", "__")
    folder = Path(runs) / f"{name.removesuffix('.toml')}@{Path(target).stem}"
    return Job(source=source, target=Path(target), folder=RunDirectory(folder, __version__),
               options=options or Options(), progress=progress)


def _closure(names: Iterable[str]) -> set[str]:
    """The named stages and everything that they need."""
    wanted: set[str] = set()
    for name in names:
        wanted |= {name} | _closure(stage_named(name).needs)
    return wanted


def advance(job: Job, upto: str | None = None, *, from_stage: str | None = None, only: str | None = None,
            force: bool = False) -> Job:
    """Make stages: all of them, or those that `upto` needs; from `from_stage` on, or `only` one, anew.

    `force` makes every wanted stage anew; with `from_stage` or `only`, those that it names. Holds the run directory's
    lock. Raises DayzeroError.
    """
    if from_stage and only:
        raise UsageError(f"--from {from_stage} and --only {only} exclude each other", "give one of them")
    last = upto or only
    wanted = _closure([last]) if last else {stage.name for stage in STAGES}
    first = stage_named(from_stage).number if from_stage else None
    alone = stage_named(only).name if only else None
    _refuse_absent(job)
    _refuse_unknown_rules(job)
    check_target(job.target)
    with _held(job):
        for stage in STAGES:
            if stage.name in wanted:
                anew = stage.name == alone or (first is not None and stage.number >= first)
                make_stage(job, stage, force=anew or (force and first is None and alone is None),
                           asked=last in (None, stage.name))
                _stop_on_broken_files(job, stage, upto)
            else:
                _keep(job, stage)
    return job


def _refuse_absent(job: Job) -> None:
    """A release that is not here and has not the form of a hub id is refused before anything is measured or run."""
    from dayzero.stages.read import read

    for source in (job.source, job.options.reference):
        if source and not os.path.exists(source) and source.count("/") != 1:
            read(source)  # it says what is wrong


def _refuse_unknown_rules(job: Job) -> None:
    """Names of rules that there are not are refused before anything is read."""
    if job.options.select or job.options.ignore:
        from dayzero.stages.preflight import chosen

        chosen(job.options.select, job.options.ignore)


@contextlib.contextmanager
def _held(job: Job) -> Iterator[None]:
    """The lock of the run directory. A new one keeps nothing when the release could not be read."""
    new = not os.path.exists(job.folder.path)
    with job.folder.lock():
        try:
            yield
        except DayzeroError:
            if new and "read" not in job.made:
                job.folder.clear()
            raise


def _keep(job: Job, stage: Stage) -> None:
    """Use what an unwanted stage left, if it is still true: a plan is better with a trace that is already there."""
    known = job.folder.load(stage.number, stage.name)
    if known and up_to_date(known, stage, job, asked=False):
        job.made[stage.name] = known


def _stop_on_broken_files(job: Job, stage: Stage, upto: str | None) -> None:
    """Files that are cut short or missing make everything after preflight meaningless: say so and stop."""
    if stage.name != "preflight" or upto == "preflight":
        return
    found = job.get("preflight", Findings)  # without it what needs it says why it is not possible
    broken = [finding for finding in (found.findings if found else ())
              if finding.severity == "error" and finding.rule.startswith("file-")]
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise ReleaseError(f"{broken[0].rule} {broken[0].subject}: {broken[0].message}{more}", broken[0].hint)


def results(job: Job) -> Results:
    """All that is known of a job. Needs target and read."""
    stages = tuple(
        StageResult(name=stage.name, status=made.status, reason=made.reason, hint=made.hint, seconds=made.seconds)
        for stage in STAGES if (made := job.made.get(stage.name)))
    return Results(
        stages=stages, target=job.need("target", Target), release=job.need("read", Release),
        findings=job.get("preflight", Findings), graph=job.get("trace", OpGraph), plan=job.get("plan", Plan),
        record=job.get("run", RunRecord), verdict=job.get("check", Verdict), bundle=job.get("emit", Bundle),
        environment={"dayzero": __version__})


def failed(outcome: Results) -> list[str]:
    """Why the release is not adapted: a verdict that is fail, a stage that failed. Empty: it is."""
    reasons = [f"{stage.name} failed: {stage.reason.splitlines()[0]}" for stage in outcome.stages
               if stage.status == "failed"]
    if outcome.findings and outcome.findings.verdict == "fail":
        reasons.append("preflight found errors")
    if outcome.plan and outcome.plan.best is None:
        reasons.append("no layout fits")
    if outcome.verdict and not outcome.verdict.passed:
        reasons.append("check: what ran is not the released model")
    return reasons


def adapt(source: str, target: Path | str, *, runs: Path | str = "runs", options: Options | None = None,
          from_stage: str | None = None, only: str | None = None, force: bool = False,
          progress: Progress = SILENT) -> Results:
    """All stages for one release on one target; returns everything that was found.

    `source` is a release folder, a card (.toml) or a hub id; `target` a target.toml. Raises DayzeroError for a wrong
    request.
    """
    job = open_job(source, target, runs=runs, options=options, progress=progress)
    return results(advance(job, from_stage=from_stage, only=only, force=force))
