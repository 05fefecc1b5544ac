"""The verdict sentence for every way in which it can end."""

from __future__ import annotations

import datetime

import msgspec
from tests.support.results import adapted, planned, small_verdict, too_large

from dayzero.schema import Finding, Findings, Layout, StageResult
from dayzero.schema.finding import Waived
from dayzero.stages.report.headline import headline, unproven


def _replaced(results, stage: str, **changes):
    stages = tuple(msgspec.structs.replace(old, **changes) if old.name == stage else old for old in results.stages)
    return msgspec.structs.replace(results, stages=stages)


def test_proven() -> None:
    top = headline(adapted())
    assert top.tone == "good"
    assert top.text == (
        "SmolLM2-135M fits on 2 × local with pp=2, runs (pp=2 and dp=2), and is proven to be the release in this "
        "folder (weights dequantised from GGUF Q4_1 to bf16): 6 of 6 checks pass against one process, fp32.")
    speed = "83.3 tokens/s (62.5 to 104)"  # 2 sequences at 24 ms a token, +-25 %
    assert [answer.answer for answer in top.answers] == ["yes", "pp=2", speed, "yes", "yes"]
    assert top.answers[2].detail == ("predicted for 2 sequences, 64 tokens in, 32 out; "
                                     "first token 210 ms (158 to 262), then 24 ms (18 to 30) a token")


def test_a_release_that_is_not_right_is_not_proven() -> None:
    """Whatever a release lacks, a run and its reference lack it alike."""
    def found(rule: str, severity: str = "error"):
        finding = Finding(rule=rule, severity=severity, subject="norm.final", message="m", hint="h")
        return headline(msgspec.structs.replace(adapted(), findings=Findings(findings=(finding,), facts={})))

    for rule in ("weights-missing", "file-hash", "config-list-length"):
        top = found(rule)
        assert top.tone == "bad" and "proven to be" not in top.text
        assert f"nothing is proven: the release itself is not right: {rule} norm.final." in top.text
        assert (top.answers[4].answer, top.answers[4].tone) == ("no", "bad")
    for top in (found("shard-heads"), found("weights-missing", "warning")):  # another layout, something to look at
        assert "is proven to be" in top.text and top.answers[4].answer == "yes"


def _open(**not_made: str):
    left = {name.replace("_", " "): why for name, why in not_made.items()}
    return msgspec.structs.replace(adapted(), verdict=msgspec.structs.replace(small_verdict(), not_made=left))


def test_comparisons_that_were_not_made_leave_it_open() -> None:
    results = _open(gradients="no memory", weights_of_3_tensors="another form")
    top = headline(results)
    assert top.tone == "warn" and "is proven" not in top.text
    assert top.text.endswith(
        "6 of 6 checks pass against one process, fp32, but it is not proven in full: 2 comparisons were not made: "
        "gradients (no memory); weights of 3 tensors (another form).")
    answer = top.answers[4]
    assert (answer.answer, answer.tone) == ("not in full", "warn") and answer.detail.startswith("2 comparisons were")
    assert f"{unproven(results)}." in top.text
    assert "1 comparison was not made: a (b)." in headline(_open(a="b")).text
    assert unproven(adapted()) == ""
    harmless = msgspec.structs.replace(small_verdict(), needless={"weights": "the same files"})
    assert headline(msgspec.structs.replace(adapted(), verdict=harmless)).tone == "good"


def test_errors_of_the_release_that_are_waived_leave_it_open() -> None:
    def waived(rule: str):
        told = Waived(rule=rule, severity="error", subject="norm.final", message="m", hint="h", reason="r",
                      expires=datetime.date(2030, 1, 1))
        return msgspec.structs.replace(adapted(), findings=Findings(findings=(), facts={}, waived=(told,)))

    top = headline(waived("file-unlisted"))
    assert top.tone == "warn" and "not proven in full: file-unlisted norm.final is waived." in top.text
    assert headline(waived("shard-heads")).tone == "good"


def test_only_published_weights_are_proven_to_be_the_released_model() -> None:
    results = adapted()
    model = msgspec.structs.replace(results.release.model, provenance="")
    published = msgspec.structs.replace(results.release, model=model)
    assert "proven to be the released model: 6 of 6" in headline(msgspec.structs.replace(
        results, release=published)).text


def test_limits_that_are_not_kept_are_said() -> None:
    results = planned()
    slow = tuple(msgspec.structs.replace(one, within=False) for one in results.plan.candidates)
    limited = msgspec.structs.replace(results, plan=msgspec.structs.replace(results.plan, candidates=slow))
    assert headline(limited).text.endswith("But no layout that fits keeps to the limits of the target.")
    assert "limits" not in headline(results).text


def test_sequences_beyond_the_context_are_said() -> None:
    results = planned()  # 4096 + 512 tokens
    short = msgspec.structs.replace(results.release.model, max_positions=4096)
    top = headline(msgspec.structs.replace(results, release=msgspec.structs.replace(results.release, model=short)))
    assert top.text.endswith("But the workload's sequences of 4,608 tokens exceed the 4,096 that the model's config "
                             "allows.")
    assert top.answers[0].tone == "warn" and "exceed the 4,096" in top.answers[0].detail
    assert "exceed" not in headline(results).text + headline(results).answers[0].detail


def test_replicas_without_a_sequence_are_said() -> None:
    results = adapted()  # two sequences
    wide = msgspec.structs.replace(results.plan.candidates[1], layout=Layout(dp=16))
    plan = msgspec.structs.replace(results.plan, candidates=(wide,))
    answer = headline(msgspec.structs.replace(results, plan=plan)).answers[1]
    assert "2 sequences keep only 2 of 16 replicas busy" in answer.detail and answer.tone == "warn"
    assert "busy" not in headline(results).answers[1].detail


def test_only_planned() -> None:
    top = headline(planned())
    assert top.tone == "warn"
    assert top.text == ("kimi-k3 fits on 2 × 8 h200 with tp=8 pp=2; it was not run (not possible here: no weights).")
    assert [answer.tone for answer in top.answers[3:]] == ["none", "none"]


def test_does_not_fit() -> None:
    top = headline(too_large())
    assert top.tone == "bad"
    assert "does not fit on 8 × h200" in top.text
    assert "193.71 GiB" in top.text and "118.18 GiB" in top.text
    assert top.answers[0].answer == "no"


def test_nothing_is_legal() -> None:
    results = too_large()
    empty = msgspec.structs.replace(results, plan=msgspec.structs.replace(results.plan, candidates=()))
    assert "none of 7 layouts is legal" in headline(empty).text


def test_not_the_released_model() -> None:
    top = headline(msgspec.structs.replace(adapted(), verdict=small_verdict(passed=False)))
    assert top.tone == "bad"
    assert "but what runs is not the release in this folder (weights" in top.text
    assert top.text.endswith(": it first diverges at layers.17 (pp=2).")
    assert top.answers[4].answer == "no"
    assert top.answers[4].detail.startswith("4 of 6")


def test_a_failed_run_is_bad_and_keeps_its_first_line() -> None:
    results = msgspec.structs.replace(adapted(), record=None, verdict=None)
    results = _replaced(results, "run", status="failed", reason="rank 1 died\nTraceback ...")
    top = headline(results)
    assert top.tone == "bad"
    assert top.text.endswith("it was not run (failed: rank 1 died).")
    assert top.answers[3].answer == "no"


def test_errors_of_preflight_overrule_a_good_end() -> None:
    error = Finding(rule="memory-total", severity="error", subject="tp=2", message="too little", hint="")
    top = headline(msgspec.structs.replace(adapted(), findings=Findings(findings=(error, error), facts={})))
    assert top.tone == "bad"
    assert top.text.endswith("But preflight found 2 errors.")


def test_missing_stages_are_not_asked_for() -> None:
    results = msgspec.structs.replace(adapted(), stages=(), plan=None, record=None, verdict=None)
    assert headline(results).text == "SmolLM2-135M has no plan for 2 × local: not asked for."
    odd = msgspec.structs.replace(results, stages=(
        StageResult(name="plan", status="failed", reason="", hint="", seconds=0.0),))
    assert "failed: no reason given" in headline(odd).text


def test_unequal_repetition_is_a_warning() -> None:
    results = adapted()
    runs = tuple(msgspec.structs.replace(run, repeat_identical=False) for run in results.record.runs)
    record = msgspec.structs.replace(results.record, runs=runs)
    assert headline(msgspec.structs.replace(results, record=record)).answers[3].tone == "warn"
