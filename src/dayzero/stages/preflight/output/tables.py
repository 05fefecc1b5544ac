"""Findings and rules for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dayzero.errors import UsageError, did_you_mean
from dayzero.schema import Finding, Findings, Release, Target, Waived
from dayzero.stages.preflight.rule import RULES
from dayzero.units import format_bytes, format_count

SHOWN = 10
"""Findings of one rule that are shown."""
FEW = 3
"""From so many on, findings that differ in the subject alone are put together."""
_WRAPPED = 6
"""Column at which a wrapped line goes on."""
_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}
_HEADINGS = {"error": ("error", "errors"), "warning": ("warning", "warnings"), "info": ("info", "infos")}
_VERDICTS = {"pass": ("PASS", "bold green"), "warn": ("WARN", "bold yellow"), "fail": ("FAIL", "bold red")}


def overview(found: Findings, release: Release, target: Target) -> RenderableType:
    """Verdict and counts, then the findings by severity and rule, what is waived, and the numbers."""
    parts: list[RenderableType] = [_Indented([_verdict(found, f"{release.name} on {target.name}")], left=0)]
    for severity in _HEADINGS:
        alike = [finding for finding in found.findings if finding.severity == severity]
        for _, group in groupby(alike, key=lambda finding: finding.rule):
            parts += [Text(), *_rule(severity, list(group))]
    if found.waived:
        parts += [Text(), Text("waived", style="bold"), _Indented(_waived(found.waived))]
    foot = list(_numbers(found.facts, searched=not target.layouts))
    if not release.tensors.count:
        foot.append(Text("the release has a config alone: sizes follow from it, weights and files were not looked at",
                         style="dim"))
    if found.findings:
        foot.append(Text(f"what a rule means: dayzero rules {found.findings[0].rule}", style="dim"))
    return Group(*parts, Text(), _Indented(foot, left=0))


def _verdict(found: Findings, what: str) -> Text:
    word, style = _VERDICTS[found.verdict]
    counts = [(found.count(severity), words) for severity, words in _HEADINGS.items()]  # type: ignore[arg-type]
    told = [f"{count} {words[count != 1]}" for count, words in counts if count]
    told += [f"{len(found.waived)} waived"] if found.waived else []
    return Text.assemble((word, style), f"  {what}: ", ", ".join(told) or "nothing found")


def _rule(severity: str, alike: list[Finding]) -> Iterator[RenderableType]:
    """The rule, what it sees, and its findings; what to do once for those where it is the same."""
    name, count = alike[0].rule, f" ({len(alike)})" if len(alike) > 1 else ""
    yield _Indented([Text.assemble((severity, _STYLES[severity]), "  ", (name, "bold"), count, "  ",
                                   (RULES.get(name).what, "dim"))], left=0)
    lines: list[Text] = []
    by_hint = {hint: [each for each in alike[:SHOWN] if each.hint == hint] for hint in (one.hint for one in alike)}
    for hint, findings in by_hint.items():
        lines += _each(findings)
        lines += [Text(f"-> {hint}", style="dim")] if hint and findings else []
    if len(alike) > SHOWN:
        lines.append(Text(f"and {len(alike) - SHOWN} more; --json lists all", style="dim"))
    yield _Indented(lines)


def _each(findings: list[Finding]) -> Iterator[Text]:
    """The messages; of several that differ in the subject alone the first one, and the other subjects."""
    alike: dict[str, list[Finding]] = {}
    for finding in findings:
        alike.setdefault(finding.message.replace(finding.subject, "\0"), []).append(finding)
    for text, same in alike.items():
        told = len(same) if "\0" not in text or len(same) < FEW else 1
        yield from (_said(finding) for finding in same[:told])
        if same[told:]:
            yield Text.assemble("the same of ", Text(", ").join(Text(each.subject, "bold") for each in same[told:]))


def _said(finding: Finding) -> Text:
    """The message, with the subject before it unless it names it itself."""
    named = finding.subject in finding.message
    text = Text(finding.message if named else f"{finding.subject}: {finding.message}", overflow="fold")
    text.highlight_words([finding.subject], "bold")
    return text


def _waived(waived: Iterable[Waived]) -> Iterator[Text]:
    for finding in waived:
        yield Text.assemble((finding.severity, _STYLES[finding.severity]), f"  {finding.rule}  ", _said(finding))
        yield Text(f"-> accepted until {finding.expires}: {finding.reason}", style="dim")


class _Indented:
    """Lines that start `left` columns in, and further in where they are wrapped; nothing is filled up with spaces on
    the right."""

    def __init__(self, lines: Iterable[Text], left: int = 4) -> None:
        self.lines = lines
        self.left = left

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines:
            wrapped = line.wrap(console, max(20, options.max_width - max(self.left, _WRAPPED)), overflow="fold")
            for number, part in enumerate(wrapped):
                part.rstrip()
                yield Text.assemble(" " * (_WRAPPED if number else self.left), part)


def _numbers(facts: dict[str, Any], searched: bool) -> Iterator[Text]:
    """The facts that decide where a release fits; `searched`: no layout was asked for."""
    total, active = format_count(facts["params_total"]), format_count(facts["params_active"])
    yield Text(f"{total} parameters, {active} used by a token; {format_bytes(facts['checkpoint_bytes'])} of weights; "
               f"{format_bytes(facts['kv_bytes_per_token'])} of cache for a token")
    degrees = ", ".join(map(str, facts["valid_tp"])) or "none"
    yield Text(f"tensor parallel degrees that divide it: {degrees}")
    if "layout" in facts:
        need, usable = format_bytes(sum(facts["bytes_per_device"].values())), format_bytes(facts["usable_bytes"])
        least = ", the layout that needs least" if searched else ""
        yield Text(f"the fullest device needs {need} of {usable} with {facts['layout']}{least}")


def rules_table() -> Table:
    """One row for each rule."""
    table = Table("rule", "severity", "what it sees", title="preflight rules", box=None)
    for rule in RULES:
        table.add_row(rule.name, f"[{_STYLES[rule.severity]}]{rule.severity}[/]", escape(rule.what))
    return table


def rule_page(name: str) -> RenderableType:
    """The page of one rule. Raises UsageError for an unknown one, with the nearest name if one is near."""
    if name not in RULES:
        near = did_you_mean(name, RULES.names())
        raise UsageError(f"no rule is named {name!r}", f"{near}dayzero rules lists them")
    rule = RULES.get(name)
    _, _, sections = rule.doc.partition("\n")
    heading = Text.assemble((rule.name, "bold"), "  ", (rule.severity, _STYLES[rule.severity]))
    return Group(heading, Text(rule.what), Text(), Markdown(sections.strip()))
