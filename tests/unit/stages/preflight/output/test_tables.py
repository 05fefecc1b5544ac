"""Findings on a terminal: grouped, counted, wrapped, and not steering it."""

from __future__ import annotations

import datetime
import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from tests.support import tiny_release as tiny
from tests.support.plan_models import target

from dayzero.errors import UsageError
from dayzero.schema import Finding, Findings, Layout, Release, Waived
from dayzero.schema.finding import Severity
from dayzero.stages.preflight import overview, preflight, rule_page, rules
from dayzero.stages.preflight.output.tables import SHOWN
from dayzero.stages.read import read

ON = msgspec.structs.replace(target(2), name="two")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    folder: Path = tmp_path_factory.mktemp("tiny")
    return read(tiny.write(folder / "release", tiny.dense_tensors()), cache=folder / "cache")


def finding(rule: str, severity: Severity, subject: str, message: str = "it is so", hint: str = "mend it") -> Finding:
    return Finding(rule=rule, severity=severity, subject=subject, message=message, hint=hint)


def printed(release: Release, *findings: Finding, width: int = 100, on: object = ON, waived: tuple = ()) -> list[str]:
    facts = preflight(release, ON).facts
    console = Console(width=width, file=io.StringIO())
    console.print(overview(Findings(findings=findings, facts=facts, waived=waived), release, on))
    return console.file.getvalue().splitlines()


def test_groups_and_counts(release: Release) -> None:
    lines = printed(release, finding("shard-heads", "error", "a"), finding("shard-heads", "error", "b"),
                    finding("shard-width", "error", "c", "c is odd", "round it"),
                    finding("shard-width", "warning", "d"), finding("config-alias", "info", "e", hint=""))
    assert lines[0] == "FAIL  release on two: 3 errors, 1 warning, 1 info"
    assert lines[2].startswith("error  shard-heads (2)  Attention heads")
    body = "\n".join(lines)
    assert "    a: it is so\n    b: it is so\n    -> mend it\n\nerror  shard-width  " in body
    assert "    c is odd\n    -> round it\n\nwarning  shard-width  " in body
    assert "    e: it is so\n\n" in body
    assert lines[-1] == "what a rule means: dayzero rules shard-heads"


def test_nothing_found(release: Release) -> None:
    lines = printed(release)
    assert lines[0] == "PASS  release on two: nothing found" and "what a rule means" not in lines[-1]
    facts = preflight(release, ON).facts
    assert f"tensor parallel degrees that divide it: {', '.join(map(str, facts['valid_tp']))}" in lines
    assert any(line.endswith(f"with {facts['layout']}, the layout that needs least") for line in lines)
    asked = msgspec.structs.replace(ON, layouts=(Layout(dp=2),))
    assert not any("needs least" in line for line in printed(release, on=asked))


def test_those_that_differ_in_the_subject_alone_are_put_together(release: Release) -> None:
    two = [finding("weights-dropped", "error", name, f"{name} is dropped") for name in ("a.b", "c.d")]
    assert "    a.b is dropped\n    c.d is dropped\n" in "\n".join(printed(release, *two))
    more = [*two, finding("weights-dropped", "error", "e.f", "e.f is dropped"),
            finding("weights-dropped", "error", "g.h", "g.h is lost")]
    assert "    a.b is dropped\n    the same of c.d, e.f\n    g.h is lost\n    -> mend it\n" in "\n".join(
        printed(release, *more))


def test_many_alike_are_cut(release: Release) -> None:
    lines = printed(release, *(finding("weights-missing", "error", f"tensor {n}") for n in range(SHOWN + 5)))
    assert sum("tensor" in line and "it is so" in line for line in lines) == SHOWN
    assert "    and 5 more; --json lists all" in lines


@pytest.mark.parametrize("width", [30, 60, 200])
def test_long_names_are_wrapped_and_whole(release: Release, width: int) -> None:
    name = "language_model.model.layers.{L}." + "block_sparse_moe." * 8 + "weight"
    lines = printed(release, finding("weights-missing", "error", name), width=width)
    assert all(len(line) <= width for line in lines) and not any(line.endswith(" ") for line in lines)
    assert name in "".join(line.strip() for line in lines)


def test_waived_ones_are_printed_with_the_reason(release: Release) -> None:
    waived = Waived(rule="shard-heads", severity="error", subject="a", message="it is so", hint="mend it",
                    reason="padded [bold]later[/bold]", expires=datetime.date(2026, 12, 31))
    lines = printed(release, waived=(waived,))
    assert lines[0] == "PASS  release on two: 1 waived"
    assert "    error  shard-heads  a: it is so" in lines
    assert "    -> accepted until 2026-12-31: padded [bold]later[/bold]" in lines


def test_a_config_alone_is_said(release: Release) -> None:
    alone = msgspec.structs.replace(release, tensors=msgspec.structs.replace(release.tensors, groups=()))
    assert "config alone" in " ".join(printed(alone)) and "config alone" not in " ".join(printed(release))


def test_pages() -> None:
    for rule in rules():
        console = Console(width=200, file=io.StringIO())
        console.print(rule_page(rule.name))
        text = console.file.getvalue()
        assert text.startswith(f"{rule.name}  {rule.severity}\n{rule.what}")
        assert all(heading in text for heading in ("What", "Why", "Example", "How to fix"))
    with pytest.raises(UsageError, match="no rule is named 'shard-head'"):
        rule_page("shard-head")
