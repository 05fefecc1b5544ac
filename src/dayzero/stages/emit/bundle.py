"""Puts the bundle together: what is emitted for which engine, with notes on what is not."""

from __future__ import annotations

from dayzero.schema import Bundle, Candidate, Estimate, Layout, Plan, Release, Target, Verdict
from dayzero.targets import EMIT_TARGETS, EmitTarget, Launch
from dayzero.units import format_bytes, format_interval

from .manifest import manifest
from .plan_json import plan_json


def emit(release: Release, plan: Plan, target: Target, *, verdict: Verdict | None = None) -> Bundle:
    """plan.json, launch scripts for the best layout that each engine can express, and manifest.json with the SHA-256
    of each.

    Without a layout that fits there is plan.json alone, and a note says why.
    """
    files: dict[str, str] = {}
    what: dict[str, str] = {}
    commands: dict[str, str] = {}
    notes: list[str] = []
    foremost: list[str] = [] if plan.best else [f"No launch command: {no_layout(plan)}"]
    launched: dict[str, Layout | None] = {}
    for engine in _engines(target) if plan.best else ():
        candidate, launch, told = _launch(engine, release, plan, target, verdict)
        launched[engine.name] = candidate.layout if candidate else None
        files |= launch.files
        what |= dict.fromkeys(launch.files, f"for the engine {engine.name}") | launch.what
        commands |= launch.commands
        foremost += told
        notes += [note for note in launch.notes if candidate and note not in launch.foremost]
    files = {"plan.json": plan_json(release, plan, target, launched, foremost), **files}
    what["plan.json"] = "the plan, for programs"
    files["manifest.json"] = manifest(release, target, files, what, verdict)
    return Bundle(files=files, commands=commands, notes=(*foremost, *notes), foremost=tuple(foremost))


def _launch(engine: EmitTarget, release: Release, plan: Plan, target: Target,
            verdict: Verdict | None) -> tuple[Candidate | None, Launch, list[str]]:
    """The best layout that fits and that the engine can express (None: there is none), how it is started, and what
    must be known before it is."""
    told, reason = _other_engine(engine, target), ""
    fitting = [candidate for candidate in plan.candidates if candidate.fits]
    for candidate in fitting:
        notes = [*told, *_other_layout(engine, fitting[0], candidate, reason)]
        comments = _comments(release, candidate, target, verdict, engine.version)
        launch = engine.launch(release, candidate, target, (*comments, *(f"Note: {note}" for note in notes)))
        if launch.commands:
            return candidate, launch, [*notes, *launch.foremost]
        reason = reason or " ".join(launch.notes)
    told.append(f"No launch command: {engine.name} can express none of the {len(fitting)} layouts of the plan that "
                f"fit. The first, {fitting[0].layout.text}: {reason}.")
    return None, launch, told


def _other_layout(engine: EmitTarget, best: Candidate, candidate: Candidate, reason: str) -> list[str]:
    """What it means that not the plan's best layout is started."""
    if candidate is best:
        return []
    rate, most = candidate.tokens_per_s, best.tokens_per_s
    loss = round(100 * (1 - rate.value / most.value))
    cost = f"{_figure(rate)} instead of {_figure(most)}, {loss} % less" if loss else f"equally fast, {_figure(rate)}"
    return [f"The command is for {candidate.layout.text}, not for the plan's first layout {best.layout.text}, which "
            f"{engine.name} cannot express ({reason}). Predicted: {cost}."]


def no_layout(plan: Plan) -> str:
    """Why no layout fits, in one sentence."""
    if plan.training:
        return "training is planned; no engine is started for it."
    if not plan.candidates:
        return f"none of the {plan.evaluated} layouts is legal for this model on this target."
    nearest = min(plan.candidates, key=lambda candidate: candidate.need_bytes)
    return (f"no layout fits; the nearest, {nearest.layout.text}, needs {format_bytes(nearest.need_bytes)} on the "
            f"fullest device, of which {format_bytes(nearest.usable_bytes)} may be used.")


def _engines(target: Target) -> list[EmitTarget]:
    """The target's engine if plans can be written for it, otherwise all engines that they can be written for."""
    if target.engine.name in EMIT_TARGETS:
        return [EMIT_TARGETS.get(target.engine.name)]
    return list(EMIT_TARGETS)


def _other_engine(engine: EmitTarget, target: Target) -> list[str]:
    if target.engine.name == engine.name:
        return []
    if target.engine.name == "any":
        return [f"The target names no engine; the command is for {engine.name}."]
    known = " and ".join(EMIT_TARGETS.names())
    return [f"The target's engine is {target.engine.name}, but commands can be written for {known} only: {engine.name} "
            "may need more memory than the plan's figures say, or be faster."]


def _figure(estimate: Estimate) -> str:
    return format_interval(estimate.value, estimate.low, estimate.high, estimate.unit)


def _comments(release: Release, best: Candidate, target: Target, verdict: Verdict | None,
              version: str) -> tuple[str, ...]:
    cluster = target.cluster
    return (
        f"{release.name} on {cluster.nodes} x {cluster.devices_per_node} {cluster.device.name}, {best.layout.text}. "
        f"Options checked against version {version}.",
        f"Predicted: {format_bytes(best.need_bytes)} of {format_bytes(best.usable_bytes)} on the fullest device; "
        f"{_figure(best.tokens_per_s)} for {target.workload.text}; first token after "
        f"{_figure(best.ttft_s)}, then {_figure(best.tpot_s)} a token.",
        _proof(verdict),
    )


def _proof(verdict: Verdict | None) -> str:
    if verdict is None:
        return "Not checked by running it: the figures are predictions."
    if verdict.passed:
        left = f"; not proven in full, {len(verdict.not_made)} were not made" if verdict.not_made else ""
        return f"Checked: all {len(verdict.checks)} comparisons with {verdict.reference} pass{left}."
    failed = sum(not check.passed for check in verdict.checks)
    return f"WARNING: {failed} of {len(verdict.checks)} comparisons with {verdict.reference} fail; do not serve this."
