"""Puts the bundle together: what is emitted for which engine, with notes on what is not."""

from __future__ import annotations

from dayzero.schema import Bundle, Candidate, Plan, Release, Target, Verdict
from dayzero.targets import EMIT_TARGETS, EmitTarget
from dayzero.units import format_bytes, format_rate, format_seconds

from .manifest import manifest
from .plan_json import plan_json


def emit(release: Release, plan: Plan, target: Target, *, verdict: Verdict | None = None) -> Bundle:
    """plan.json, launch scripts for the plan's best layout, and manifest.json with the SHA-256 of each.

    Without a layout that fits there is plan.json alone, and a note says why.
    """
    files = {"plan.json": plan_json(release, plan, target)}
    what = {"plan.json": "the plan, for programs"}
    commands: dict[str, str] = {}
    notes: list[str] = []
    best = plan.best
    if best is None:
        notes.append(f"No launch command: {no_layout(plan)}")
    else:
        for engine in _engines(target):
            launch = engine.launch(release, best, target, _comments(release, best, target, verdict, engine.version))
            files |= launch.files
            what |= dict.fromkeys(launch.files, f"for the engine {engine.name}") | launch.what
            commands |= launch.commands
            notes += [*_other_engine(engine, target), *launch.notes]
    files["manifest.json"] = manifest(release, target, files, what, verdict)
    return Bundle(files=files, commands=commands, notes=tuple(notes))


def no_layout(plan: Plan) -> str:
    """Why no layout fits, in one sentence."""
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
    if target.engine.name in ("any", engine.name):
        return []
    return [f"The plan's figures are for the engine {target.engine.name}; the command is for {engine.name}, which may "
            "need more memory or be faster."]


def _comments(release: Release, best: Candidate, target: Target, verdict: Verdict | None,
              version: str) -> tuple[str, ...]:
    cluster = target.cluster
    return (
        f"{release.name} on {cluster.nodes} x {cluster.devices_per_node} {cluster.device.name}, {best.layout.text}. "
        f"Options checked against version {version}.",
        f"Predicted: {format_bytes(best.need_bytes)} of {format_bytes(best.usable_bytes)} on the fullest device; "
        f"first token after {format_seconds(best.ttft_s.value)}, then {format_seconds(best.tpot_s.value)} a token; "
        f"{format_rate(best.tokens_per_s.value, 'tokens/s')} at {target.workload.concurrency} sequences.",
        _proof(verdict),
    )


def _proof(verdict: Verdict | None) -> str:
    if verdict is None:
        return "Not checked by running it: the figures are predictions."
    if verdict.passed:
        return f"Checked: all {len(verdict.checks)} comparisons with {verdict.reference} pass."
    failed = sum(not check.passed for check in verdict.checks)
    return f"WARNING: {failed} of {len(verdict.checks)} comparisons with {verdict.reference} fail; do not serve this."
