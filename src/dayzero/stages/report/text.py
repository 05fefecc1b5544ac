"""The summary for the terminal: what a reader needs before opening the report, in a screenful."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dayzero.schema import Release, Results, StageResult
from dayzero.units import format_bytes, format_count, format_interval, format_rate, format_seconds

from .card import card_lines
from .headline import headline
from .prediction import Prediction, compare

_STYLES = {"good": "bold green", "warn": "bold yellow", "bad": "bold red", "none": "dim",
           "error": "bold red", "warning": "yellow", "info": "dim"}
FINDINGS = 4
"""Errors and warnings that are told one by one."""
_VERDICTS = {"good": "ADAPTED", "warn": "FITS, NOT PROVEN", "bad": "FAIL", "none": ""}


def summary(results: Results) -> RenderableType:
    """At most about 30 lines: verdict, release, findings, layout, run, check, predictions, command, what was not
    possible. Text from releases is never read as markup."""
    top = headline(results)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in _lines(results):
        grid.add_row(_printable(Text(label)), _printable(text))
    verdict = Text.assemble((_verdict(results, top.tone), _STYLES[top.tone]), "  ", top.text)
    return Group(Text(), _printable(verdict), Text(), grid)


def _verdict(results: Results, tone: str) -> str:
    return "RUNS, NOT PROVEN IN FULL" if tone == "warn" and results.verdict else _VERDICTS[tone]


def release_card(release: Release) -> RenderableType:
    """The release card for the terminal."""
    table = Table("fact", "value", "read from", title=_printable(Text(release.name)))
    for line in card_lines(release):
        table.add_row(line.label, _printable(Text(line.value)), _printable(Text(line.source, style="dim")))
    return table


def _printable(text: Text) -> Text:
    """Control characters in a release's strings do not reach the terminal."""
    text.plain = "".join(char if char.isprintable() else " " for char in text.plain)
    return text


def _lines(results: Results) -> Iterator[tuple[str, Text]]:
    yield "release", _release(results)
    yield from _findings(results)
    for answer in headline(results).answers[: 3 + 2 * (results.record is not None)]:  # else told with its reason below
        yield answer.question.rstrip("?").lower(), Text.assemble((answer.answer, _STYLES[answer.tone]), "  ",
                                                                  (answer.detail, "dim"))
    for prediction in _worst(compare(results)):
        yield prediction.name, _prediction(prediction)
    if results.bundle:
        yield from (("command" if index == 0 else "", Text(note, style=_STYLES["warning"]))
                    for index, note in enumerate(results.bundle.foremost))
        commands = list(results.bundle.commands.items())
        yield from ((label, Text(command, style="cyan")) for label, command in commands[:2])
        if len(commands) > 2:
            yield "", Text(f"and {len(commands) - 2} more, in the report", style="dim")
    if results.graph and not results.graph.ran:
        yield "trace", Text(results.graph.source, style="dim")
    for stage in results.stages:
        if stage.status != "done":
            yield stage.name, _not_done(stage)


def _release(results: Results) -> Text:
    model = results.release.model
    active = model.parameters_active.get("no_embedding")
    parts = [f"{format_count(model.parameters)} parameters"]
    parts += [f"{format_count(active)} active (without input embedding)"] if active and model.mixes_experts else []
    kinds = ", ".join(f"{count} {kind}" for kind, count in model.attention_layers().items())
    parts += [f"{len(model.layers)} layers ({kinds} attention)", format_bytes(model.checkpoint_bytes)]
    parts += [model.provenance] if model.provenance else []
    return Text.assemble((results.release.name, "bold"), "  ", ", ".join(parts))


def _findings(results: Results) -> Iterator[tuple[str, Text]]:
    if results.findings is None:
        return
    found = results.findings.findings
    counts = {severity: sum(finding.severity == severity for finding in found)
              for severity in ("error", "warning", "info")}
    waived = results.findings.waived
    told = [f"{count} {severity}{'s' * (count != 1)}" for severity, count in counts.items()]
    yield "preflight", Text(", ".join([*told, *([f"{len(waived)} waived"] if waived else [])]))
    if unknowns := results.release.model.unknowns:
        more = f" and {len(unknowns) - 3} more" if len(unknowns) > 3 else ""
        yield "", Text.assemble((f"{len(unknowns)} config keys or tensors are not understood", _STYLES["warning"]),
                                f": {', '.join(unknowns[:3])}{more}")
    shown = [finding for finding in found if finding.severity != "info"]
    for finding in shown[:FINDINGS]:
        subject = "" if finding.subject in finding.message else f"{finding.subject}: "
        yield "", Text.assemble((finding.severity, _STYLES[finding.severity]), f"  {finding.rule} {subject}",
                                finding.message, (f"  -> {finding.hint}" if finding.hint else "", "dim"))
    if len(shown) > FINDINGS:
        yield "", Text(f"and {len(shown) - FINDINGS} more, in the report", style="dim")
    for accepted in waived:
        yield "", Text.assemble(("waived", _STYLES["warning"]), f"  {accepted.rule} {accepted.subject}: ",
                                accepted.message, (f"  until {accepted.expires}: {accepted.reason}", "dim"))


def _worst(predictions: tuple[Prediction, ...]) -> list[Prediction]:
    """For each figure the prediction that is farthest off."""
    worst: dict[str, Prediction] = {}
    for prediction in predictions:
        known = worst.get(prediction.name)
        if known is None or _distance(prediction) > _distance(known):
            worst[prediction.name] = prediction
    return list(worst.values())


def _distance(prediction: Prediction) -> float:
    return max(prediction.ratio, 1 / prediction.ratio) if prediction.ratio else float("inf")


def _prediction(prediction: Prediction) -> Text:
    where = prediction.layout.text + (f", rank {prediction.rank}" if prediction.rank is not None else "")
    return Text.assemble(
        f"predicted {_predicted(prediction)}, "
        f"measured {quantity(prediction.measured, prediction.unit)}, ratio {prediction.ratio:.2f}  ",
        (f"{prediction.tolerance}: {'yes' if prediction.ok else 'NO'}", _STYLES["good" if prediction.ok else "bad"]),
        (f"  {where}, the farthest off", "dim"), (f"; {prediction.note}" if prediction.note else "", _STYLES["warn"]))


def _predicted(prediction: Prediction) -> str:
    if prediction.unit != "B":
        return format_interval(prediction.predicted, prediction.low, prediction.high, prediction.unit)
    value, low, high = (format_bytes(round(part)) for part in (prediction.predicted, prediction.low, prediction.high))
    return f"{value} ({low} to {high})"


def quantity(value: float, unit: str) -> str:
    """A figure with its unit: bytes, seconds or a rate."""
    if unit == "B":
        return format_bytes(round(value))
    return format_seconds(value) if unit == "s" else format_rate(value, unit)


def _not_done(stage: StageResult) -> Text:
    status = "failed" if stage.status == "failed" else "not possible here"
    reason = (stage.reason.splitlines() or ["no reason given"])[0]
    return Text.assemble((f"{status}: ", _STYLES["bad" if stage.status == "failed" else "warn"]), reason,
                         (f"  -> {stage.hint}" if stage.hint else "", "dim"))
