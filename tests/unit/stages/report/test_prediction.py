"""Predictions beside measurements: which rank gets which stage, and what is within tolerance."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.results import MIB, adapted, planned

from dayzero.schema import Layout
from dayzero.stages.report.prediction import compare, unplanned


def _with_run(**changes):
    """Results of the first run alone, changed."""
    results = adapted()
    run = msgspec.structs.replace(results.record.runs[0], **changes)
    return msgspec.structs.replace(results, record=msgspec.structs.replace(results.record, runs=(run,)))


def test_every_rank_is_compared_with_its_own_stage() -> None:
    memory = [found for found in compare(adapted()) if found.name == "peak memory"]
    assert [(found.layout.text, found.rank) for found in memory] == [
        ("pp=2", 0), ("pp=2", 1), ("dp=2", 0), ("dp=2", 1)]
    # pp=2 rank 0: embedding 56,623,104 and 14 layers of 7,080,192; 5 + 30 + 410 + 24 MiB of other causes
    assert memory[0].predicted == 56_623_104 + 14 * 7_080_192 + 469 * MIB
    assert memory[1].predicted == 56_623_104 + 16 * 7_080_192 + 481 * MIB
    assert memory[0].measured == 640 * MIB
    assert memory[0].ratio == pytest.approx(640 * MIB / memory[0].predicted)


def test_speed_is_compared_by_a_factor_in_both_directions() -> None:
    for rate, ok in ((55.4, False), (55.6, True), (124.9, True), (125.1, False)):  # predicted 83.33
        decode = next(found for found in compare(_with_run(tokens_per_s=rate)) if found.name == "decode rate")
        assert decode.ok is ok, rate


@given(st.integers(1, 4 * 2**30))
def test_memory_within_15_per_cent(measured: int) -> None:
    ranks = adapted().record.runs[0].ranks
    results = _with_run(ranks=(msgspec.structs.replace(ranks[0], peak_private_bytes=measured),))
    found = compare(results)[0]
    assert found.ok == (0.85 * found.predicted <= measured <= 1.15 * found.predicted)
    assert found.low <= found.predicted <= found.high


def test_a_rank_that_was_cut_otherwise_than_planned_is_not_compared() -> None:
    ranks = adapted().record.runs[0].ranks
    moved = msgspec.structs.replace(ranks[0], layers=tuple(range(15)))
    names = [found.name for found in compare(_with_run(ranks=(moved,)))]
    assert names == ["decode rate", "time to first token"]


def test_prompts_of_another_length_than_planned_are_said() -> None:
    def note(*tokens: int) -> str:  # the plan is for 64
        run = _with_run(prompt_tokens=tokens)
        plan = msgspec.structs.replace(run.plan, workload={"input_tokens": 64})
        found = compare(msgspec.structs.replace(run, plan=plan))
        assert not any(each.note for each in found if each.name != "time to first token")
        return next(each.note for each in found if each.name == "time to first token")

    assert note(10, 30, 200) == "predicted for a prompt of 64 tokens, measured with prompts of 30 (median)"
    assert [bool(note(tokens)) for tokens in (47, 48, 80, 81)] == [True, False, False, True]
    assert note() == ""


def test_layouts_without_a_plan_are_named() -> None:
    results = _with_run(layout=Layout(tp=3))
    assert compare(results) == ()
    assert unplanned(results) == (Layout(tp=3),)
    assert unplanned(adapted()) == ()
    same = _with_run(layout=Layout.parse("pp=2,attention_tp=1"))
    assert unplanned(same) == ()


def test_nothing_to_compare_without_a_run() -> None:
    assert compare(planned()) == ()
    assert unplanned(planned()) == ()
