"""Why one layout is behind another, and what one that does not fit lacks."""

import msgspec
from tests.support.plan_models import target

from dayzero.schema import Candidate, Estimate, Layout
from dayzero.stages.plan.choice.reasons import by_cause, compared, differences, lacks

GIB = 2**30


def candidate(tpot=0.01, ttft=1.0, decode=None, prefill=None, sequences=8, **needs):
    def estimate(value, unit):
        return Estimate(value=value, low=value, high=value, unit=unit, source="test")

    held = needs or {"weights": GIB}
    return Candidate(
        layout=Layout(tp=2), fits=sum(held.values()) <= 10 * GIB, stages=((0, 4),), bytes_per_device=held,
        usable_bytes=10 * GIB, bytes_per_stage=(held,), max_sequences=sequences, ttft_s=estimate(ttft, "s"),
        tpot_s=estimate(tpot, "s"), tokens_per_s=estimate(8 / tpot, "tokens/s"),
        decode_seconds=decode or {"matmul": tpot}, prefill_seconds=prefill or {"matmul": ttft}, limits=(),
        explanation="")  # fmt: skip


def test_the_causes_that_differ_most():
    first = {"experts": 2e-3, "communication": 1.8e-3, "norm": 1e-4}
    other = {"experts": 2.2e-3, "communication": 3.1e-3, "norm": 1e-4}
    assert [one.cause for one in differences(first, other)] == ["communication", "experts"]
    assert by_cause(first, other, slower=True) == "communication 1.8 ms -> 3.1 ms, experts 2 ms -> 2.2 ms"
    assert differences({}, {}) == [] and by_cause(first, first, slower=True) == ""


def test_causes_that_go_the_other_way_are_told_apart():
    first, other = {"experts": 4e-3, "communication": 1e-3}, {"experts": 3e-3, "communication": 4e-3}
    assert by_cause(first, other, slower=True) == "communication 1 ms -> 4 ms, in spite of experts 4 ms -> 3 ms"
    assert by_cause(first, other, slower=False) == "experts 4 ms -> 3 ms, in spite of communication 1 ms -> 4 ms"
    assert by_cause({"experts": 1e-3}, {"experts": 2e-3}, slower=False) == "in spite of experts 1 ms -> 2 ms"


def test_a_cause_that_only_one_has():
    both = {"experts": 1e-3}, {"experts": 1e-3, "all-to-all": 5e-4}
    assert by_cause(*both, slower=True) == "all-to-all 0 us -> 500 us"


def test_what_the_runner_up_loses():
    first = candidate(tpot=0.0088, decode={"experts": 0.007, "communication": 0.0018})
    other = candidate(tpot=0.0100, decode={"experts": 0.0069, "communication": 0.0031})
    assert compared(first, other) == "loses 12%: communication 1.8 ms -> 3.1 ms a token"
    assert compared(other, first).startswith("gains 14%: communication 3.1 ms -> 1.8 ms")


def test_alike_but_later():
    other = candidate(ttft=1.5, prefill={"matmul": 1.0, "communication": 0.5})
    assert compared(candidate(), other) == "as fast; first token 50% later: communication 0 us -> 500 ms"


def test_sequences_have_no_room():
    text = lacks(candidate(weights=7 * GIB, kv_cache=5 * GIB, sequences=3), target())
    assert text == ("2.00 GiB more than the 10.00 GiB of a device (weights 7.00 GiB, kv cache 5.00 GiB): "
                    "3 of the 8 sequences have room")
    none = candidate(weights=9 * GIB, kv_cache=5 * GIB, sequences=0)
    assert "not one sequence of full length" in lacks(none, target())


def test_weights_have_no_room():
    text = lacks(candidate(weights=24 * GIB, process=2 * GIB, sequences=0), target())
    assert text.endswith("its weights have to be shared by 3 times as many devices, or each needs more memory")
    assert "even without weights" in lacks(candidate(weights=GIB, process=11 * GIB, sequences=0), target())


def test_a_step_of_prefill_has_no_room():
    # 10 GiB less 8 of weights leave 2 of the 4 that 8192 tokens need
    text = lacks(candidate(weights=8 * GIB, activations=3 * GIB, communication=GIB, sequences=0), target())
    assert text.endswith("steps of prefill would have to be shorter than 4,096 tokens (max_batched_tokens)")


def test_nothing_is_said_of_causes_where_they_are_alike():
    slower = msgspec.structs.replace(candidate(), tokens_per_s=Estimate(value=1.0, low=1, high=1, unit="", source=""))
    assert compared(candidate(), slower) == "loses 100%"
