"""Waivers: what they accept, for how long, and that they are told when they do nothing."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import pytest
from tests.support import tiny_release as tiny
from tests.support.plan_models import target

from dayzero.errors import TargetError
from dayzero.schema import Finding, Findings, Layout, Release, from_json, to_json
from dayzero.schema.target import Waiver
from dayzero.stages.preflight import Case, preflight
from dayzero.stages.preflight.waivers import divide
from dayzero.stages.read import read

TODAY = datetime.date(2026, 7, 1)
DAY = datetime.timedelta(days=1)
NINE_ON_TWO = msgspec.structs.replace(target(2, concurrency=1, input_tokens=16, output_tokens=16,
                                             max_batched_tokens=16), layouts=(Layout(tp=2),))


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """9 heads and 3 key/value heads, which two ranks cannot share."""
    folder: Path = tmp_path_factory.mktemp("tiny")
    return read(tiny.write(folder / "release", tiny.dense_tensors()), cache=folder / "cache")


def found(release: Release, *waivers: Waiver, **chosen: object) -> Findings:
    return preflight(release, msgspec.structs.replace(NINE_ON_TWO, waivers=waivers), today=TODAY, **chosen)


def waiver(rule: str, subject: str = "*", expires: datetime.date = TODAY) -> Waiver:
    return Waiver(rule=rule, subject=subject, reason="the engine pads them", expires=expires)


def names(findings: tuple) -> list[tuple[str, str]]:
    return [(finding.rule, finding.subject) for finding in findings]


HEADS, KV = ("shard-heads", "num_attention_heads"), ("shard-kv-heads", "num_key_value_heads")


def test_without_a_waiver(release: Release) -> None:
    plain = found(release)
    assert names(plain.findings) == [HEADS, KV]
    assert plain.verdict == "fail" and plain.waived == ()


@pytest.mark.parametrize("subject", ["*", "num_attention_heads", "num_*_heads", "*heads"])
def test_a_waived_finding_does_not_count(release: Release, subject: str) -> None:
    one = found(release, waiver("shard-heads", subject))
    assert names(one.findings) == [KV] and one.verdict == "fail"
    assert names(one.waived) == [HEADS]
    assert (one.waived[0].reason, one.waived[0].expires) == ("the engine pads them", TODAY)
    assert one.waived[0].facts == found(release).findings[0].facts
    both = found(release, waiver("shard-heads", subject), waiver("shard-kv-heads"))
    assert both.verdict == "pass" and names(both.waived) == [HEADS, KV]
    assert from_json(to_json(both), Findings) == both


def test_it_waives_on_its_last_day_and_not_after_it(release: Release) -> None:
    assert names(found(release, waiver("shard-heads", expires=TODAY)).waived) == [HEADS]
    late = found(release, waiver("shard-heads", expires=TODAY - DAY))
    assert late.waived == ()
    assert names(late.findings) == [HEADS, KV, ("waiver-expired", "shard-heads")]
    expired = late.findings[-1]
    assert expired.severity == "warning" and "2026-06-30" in expired.message and expired.facts["findings"] == 1


def test_an_expired_one_that_matches_nothing_is_told_once(release: Release) -> None:
    late = found(release, waiver("shard-width", "vocab_size", TODAY - DAY), waiver("shard-heads"),
                 waiver("shard-kv-heads"))
    assert names(late.findings) == [("waiver-expired", "shard-width: vocab_size")] and late.verdict == "warn"
    assert late.findings[0].hint == "delete the waiver"


def test_one_that_matches_nothing_is_told(release: Release) -> None:
    unused = found(release, waiver("shard-heads", "attention"), waiver("rope-base"))
    assert names(unused.findings)[2:] == [("waiver-unused", "shard-heads: attention"), ("waiver-unused", "rope-base")]
    first, second = unused.findings[2:]
    assert first.severity == second.severity == "info"
    assert "the rule found num_attention_heads" in first.message and first.hint.startswith("write its subject")
    assert second.hint == "delete the waiver"


def test_the_patterns_of_many_tensors_are_matched(release: Release) -> None:
    """`{L}` in a subject is text, and so it is in a waiver."""
    name = "model.layers.{L}.self_attn.o_proj.weight"
    missing = Finding(rule="weights-missing", severity="error", subject=name, message="", hint="")
    for subject, accepted in ((name, 1), ("*.o_proj.weight", 1), ("model.layers.*", 1), ("*.q_proj.weight", 0)):
        on = msgspec.structs.replace(NINE_ON_TWO, waivers=(waiver("weights-missing", subject),))
        case = Case(release, on, today=TODAY)
        case.found = {"weights-missing": [missing]}
        kept, waived = divide(case)
        assert (len(kept), len(waived)) == (1 - accepted, accepted), subject


@pytest.mark.parametrize(("rule", "meant"), [("shard-head", "shard-heads"), ("waiver-unused", ""), ("*", ""),
                                             ("shard-", "shard-")])
def test_a_waiver_of_no_rule_is_refused(release: Release, rule: str, meant: str) -> None:
    with pytest.raises(TargetError, match="a waiver is for the rule") as told:
        found(release, waiver(rule))
    assert meant in told.value.hint


def test_a_rule_that_was_not_looked_at_leaves_no_waiver_unused(release: Release) -> None:
    assert found(release, waiver("rope-base"), ignore=["shard-", "rope-base"]).findings == ()
    assert found(release, waiver("shard-heads"), select=["shard-kv-heads"]).waived == ()
    assert names(found(release, waiver("rope-base"), select=["rope-", "waiver-"]).findings) == [
        ("waiver-unused", "rope-base")]
