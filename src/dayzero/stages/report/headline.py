"""The verdict in one sentence, and the five questions that everyone asks first."""

from __future__ import annotations

from typing import Literal

from dayzero.schema import Candidate, Estimate, Noun, Results, StageResult, Target, Trained
from dayzero.units import format_bytes, format_interval

Tone = Literal["good", "warn", "bad", "none"]
OF_RELEASE = ("file-", "weights-", "scale-", "config-", "quant-config-")
"""What the names of rules begin with that are about the release alone, whatever the layout and the engine."""

_SHOWN = 3
"""So many of many are named."""


class Answer(Noun, frozen=True, kw_only=True):
    """One question with its answer."""

    question: str
    """Such as `Does it fit?`."""
    answer: str
    """A few words."""
    detail: str
    """The figures behind it, or the reason."""
    tone: Tone
    """good, warn, bad, or none when it is not known."""


class Headline(Noun, frozen=True, kw_only=True):
    """What a reader should take away."""

    tone: Tone
    """good: runs and is proven; warn: nothing speaks against it, but not all is proven; bad: it does not work."""
    text: str
    """One sentence."""
    answers: tuple[Answer, ...]
    """Fits, layout, speed, runs, proven."""


def headline(results: Results) -> Headline:
    """The verdict on one release and target."""
    tone, text = _sentence(results)
    errors = _errors(results)
    if errors and tone != "bad":
        tone, text = "bad", f"{text} But preflight found {errors} error{'s' * (errors > 1)}."
    for beyond in filter(None, (beyond_context(results), beyond_limits(results))):
        text = f"{text} But {beyond}."
    return Headline(tone=tone, text=text, answers=(
        _fits(results), _layout(results), _speed(results), _runs(results), _proven(results)))


def cluster_text(target: Target) -> str:
    """`nodes × devices name`, or `devices × name` for one node."""
    cluster = target.cluster
    nodes = f"{cluster.nodes} × " if cluster.nodes > 1 else ""
    joint = " " if nodes else " × "
    return f"{nodes}{cluster.devices_per_node}{joint}{cluster.device.name}"


def stage_result(results: Results, name: str) -> StageResult | None:
    """How a stage ended; None when it has not been asked for."""
    return next((stage for stage in results.stages if stage.name == name), None)


def interval(estimate: Estimate) -> str:
    """A predicted figure with its interval."""
    return format_interval(estimate.value, estimate.low, estimate.high, estimate.unit)


def beyond_context(results: Results) -> str:
    """That sequences of the workload are longer than the model can take; empty when they are not."""
    length, limit = results.target.workload.length, results.release.model.max_positions
    if not limit or length <= limit:
        return ""
    return f"the workload's sequences of {length:,} tokens exceed the {limit:,} that the model's config allows"


def beyond_limits(results: Results) -> str:
    """That no layout that fits keeps to the limits of the target; empty when one does."""
    best = results.plan.best if results.plan else None
    return "no layout that fits keeps to the limits of the target" if best and not best.within else ""


def why_not(results: Results, name: str) -> str:
    """Why a stage has no result, in a few words; empty when it has one."""
    stage = stage_result(results, name)
    if stage is None:
        return "not asked for"
    if stage.status == "done":
        return ""
    reason = (stage.reason.splitlines() or ["no reason given"])[0]
    return f"{'failed' if stage.status == 'failed' else 'not possible here'}: {reason}"


def nearest(results: Results) -> Candidate | Trained | None:
    """The layout that needs the least memory on its fullest device."""
    found: list[Candidate | Trained] = [*results.plan.candidates, *results.plan.training] if results.plan else []
    return min(found, key=lambda candidate: candidate.need_bytes, default=None)


def _errors(results: Results) -> int:
    return sum(finding.severity == "error" for finding in results.findings.findings) if results.findings else 0


def _wrong(results: Results) -> str:
    """That something is wrong with the release itself, so that no check can prove it; empty when nothing is known."""
    found = [finding for finding in (results.findings.findings if results.findings else ())
             if finding.severity == "error" and finding.rule.startswith(OF_RELEASE)]
    return f"the release itself is not right: {found[0].rule} {found[0].subject}" if found else ""


def _gaps(results: Results) -> str:
    """What checks that pass leave open: comparisons that were not made, errors of the release that the target waives,
    tensors that the model that ran has no place for; empty when nothing is."""
    left = results.verdict.not_made if results.verdict else {}
    told = [f"{name} ({why})" for name, why in left.items()]
    more = f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    made = f"{len(told)} comparison{'s were' if len(told) > 1 else ' was'} not made: {'; '.join(told[:_SHOWN])}{more}"
    waived = [f"{finding.rule} {finding.subject} is waived" for finding in (
        results.findings.waived if results.findings else ())
        if finding.severity == "error" and finding.rule.startswith(OF_RELEASE)]
    unused = [f"{finding.subject} is in the files and was not run" for finding in (
        results.findings.findings if results.findings else ())
        if finding.severity == "warning" and finding.rule == "weights-unexpected"]
    return "; ".join([*([made] if told else []), *waived[:_SHOWN], *unused[:_SHOWN]])


def unproven(results: Results) -> str:
    """Why it is not proven although every check passes; empty when it is, or when a check fails or none was made."""
    if results.verdict is None or not results.verdict.passed:
        return ""
    return _wrong(results) or _gaps(results)


def _sentence(results: Results) -> tuple[Tone, str]:
    name, cluster, plan = results.release.name, cluster_text(results.target), results.plan
    if plan is None:
        return "bad", f"{name} has no plan for {cluster}: {why_not(results, 'plan')}."
    if plan.trained:
        return "warn", (f"{name} can be trained on {cluster} with {plan.trained.layout.text}; training is planned, not "
                        "run.")
    if plan.best is None:
        close = nearest(results)
        if close is None:
            return "bad", f"{name} does not run on {cluster}: none of {plan.evaluated} layouts is legal."
        return "bad", (f"{name} does not fit on {cluster}: the nearest layout ({close.layout.text}) needs "
                       f"{format_bytes(close.need_bytes)} on its fullest device, which has "
                       f"{format_bytes(close.usable_bytes)} to use.")
    fits = f"{name} fits on {cluster} with {plan.best.layout.text}"
    if results.record is None:
        stage = stage_result(results, "run")
        tone: Tone = "bad" if stage and stage.status == "failed" else "warn"
        return tone, f"{fits}; it was not run ({why_not(results, 'run')})."
    ran = " and ".join(run.layout.text for run in results.record.runs)
    verdict = results.verdict
    if verdict is None:
        return "warn", f"{fits} and runs ({ran}); it was not checked ({why_not(results, 'check')})."
    agree = f"{len(verdict.checks)} of {len(verdict.checks)} checks pass against {verdict.reference}"
    if verdict.passed and (wrong := _wrong(results)):
        return "bad", f"{fits} and runs ({ran}), and {agree}, but nothing is proven: {wrong}."
    if verdict.passed and (gaps := _gaps(results)):
        return "warn", f"{fits} and runs ({ran}), and {agree}, but it is not proven in full: {gaps}."
    if verdict.passed:
        return "good", (f"{fits}, runs ({ran}), and is proven to be {_compared(results)}: {agree}.")
    first = verdict.first_divergence
    failed = next((check for check in verdict.checks if not check.passed), None)
    where = f": {failed.name} fails ({failed.detail})" if failed and failed.detail else ""
    if first:
        where = f": it first diverges at {first.place} ({first.layout})"
    return "bad", f"{fits} and runs ({ran}), but what runs is not {_compared(results)}{where}."


def _compared(results: Results) -> str:
    """What a check can prove the running model to be: weights that were made from others are not the released ones."""
    made = results.release.model.provenance.partition(",")[0]
    return f"the release in this folder ({made})" if made else "the released model"


def _fits(results: Results) -> Answer:
    question, plan = "Does it fit?", results.plan
    if plan is None:
        return Answer(question=question, answer="unknown", detail=why_not(results, "plan"), tone="none")
    best = plan.best or plan.trained or nearest(results)
    detail = (f"{format_bytes(best.need_bytes)} of {format_bytes(best.usable_bytes)} on the fullest device"
              if best else "no legal layout")
    beyond = beyond_context(results)
    fits = bool(plan.best or plan.trained)
    tone: Tone = "bad" if not fits else "warn" if beyond else "good"
    return Answer(question=question, answer="yes" if fits else "no", tone=tone,
                  detail="; ".join(filter(None, (detail, f"{plan.evaluated} layouts looked at", beyond))))


def _layout(results: Results) -> Answer:
    trained = results.plan.trained if results.plan else None
    if trained:
        return Answer(question="Which layout?", answer=trained.layout.text, tone="good", detail=trained.explanation)
    best = results.plan.best if results.plan else None
    if best is None:
        return Answer(question="Which layout?", answer="none", detail="nothing fits", tone="none")
    world, devices = best.layout.world_size, results.target.cluster.world_size
    idle = _idle(best, results.target.workload.concurrency)
    return Answer(question="Which layout?", answer=best.layout.text, tone="warn" if idle else "good",
                  detail=f"{world} of {devices} devices; {idle}room for {best.max_sequences} full-length sequences")


def _idle(candidate: Candidate, concurrency: int) -> str:
    """That there are more replicas than sequences to serve; empty when there are not."""
    replicas = candidate.layout.dp
    if replicas <= concurrency or candidate.arrivals:
        return ""
    return (f"{concurrency} sequence{'s keep' if concurrency > 1 else ' keeps'} only {concurrency} of {replicas} "
            "replicas busy; ")


def _speed(results: Results) -> Answer:
    trained = results.plan.trained if results.plan else None
    if trained:
        return Answer(question="How fast?", answer=interval(trained.tokens_per_s), tone="none",
                      detail=f"predicted; a step takes {interval(trained.step_s)}, {trained.mfu:.0%} of stated rates")
    best = results.plan.best if results.plan else None
    if best is None:
        return Answer(question="How fast?", answer="unknown", detail="nothing fits", tone="none")
    return Answer(question="How fast?", answer=interval(best.tokens_per_s), tone="none",
                  detail=f"predicted for {results.target.workload.text}; first token {interval(best.ttft_s)}, then "
                         f"{interval(best.tpot_s)} a token")


def _runs(results: Results) -> Answer:
    if results.record is None:
        stage = stage_result(results, "run")
        failed = stage is not None and stage.status == "failed"
        return Answer(question="Does it run?", answer="no" if failed else "not run", detail=why_not(results, "run"),
                      tone="bad" if failed else "none")
    runs = results.record.runs
    repeat = all(run.repeat_identical for run in runs)
    return Answer(question="Does it run?", answer="yes", tone="good" if repeat else "warn",
                  detail=f"{' and '.join(run.layout.text for run in runs)}; same seed twice: "
                         f"{'same bits' if repeat else 'different bits'}")


def _proven(results: Results) -> Answer:
    question, verdict = "Is it proven?", results.verdict
    if verdict is None:
        return Answer(question=question, answer="not checked", detail=why_not(results, "check"), tone="none")
    passed, total = sum(check.passed for check in verdict.checks), len(verdict.checks)
    detail = f"{passed} of {total} checks pass against {verdict.reference}"
    if verdict.passed and (wrong := _wrong(results)):
        return Answer(question=question, answer="no", detail=wrong, tone="bad")
    if verdict.passed and (gaps := _gaps(results)):
        return Answer(question=question, answer="not in full", detail=f"{gaps}; {detail}", tone="warn")
    return Answer(question=question, answer="yes" if verdict.passed else "no", tone="good" if verdict.passed else "bad",
                  detail=detail)
