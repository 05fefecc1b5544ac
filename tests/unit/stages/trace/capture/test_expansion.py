"""Calls that compute again what is in the cache: their two shares."""

from __future__ import annotations

from typing import Any

import pytest

from dayzero.stages.trace.capture.captured import Call
from dayzero.stages.trace.capture.expansion import shares
from dayzero.stages.trace.capture.step import Step

DECODE = Step("decode", 2, 1, 9)


def call(rows: int, op: str = "aten.mm", kind: str = "linear", **other: Any) -> Call:
    inputs = ((6,), (rows, 4), (4, 6)) if op == "aten.addmm" else ((rows, 4), (4, 6))
    return Call(op, "layers.0.up", 0, (), kind, inputs, ((rows, 6),), "bf16", 2 * rows * 4 * 6,
                2 * (rows * 10 + 24))._replace(**other)


@pytest.mark.parametrize("op", ["aten.mm", "aten.addmm"])
def test_rows_of_the_context_are_an_expansion(op: str) -> None:
    whole = call(20, op)
    new, again = shares(whole, DECODE)
    assert (new.kind, again.kind) == ("linear", "expansion")
    assert new.inputs == call(2, op).inputs and new.outputs == ((2, 6),) and new.flops == 2 * 2 * 4 * 6
    assert again.inputs == call(18, op).inputs and again.outputs == ((18, 6),)
    assert new.flops + again.flops == whole.flops and new.bytes + again.bytes == whole.bytes
    assert new.bytes == call(2, op).bytes and again.bytes == 2 * 18 * 10  # the weight is read once


def test_rows_of_sequences_keep_their_form() -> None:
    whole = call(20, "aten.linear", inputs=((2, 10, 4), (6, 4)), outputs=((2, 10, 6),))
    new, again = shares(whole, DECODE)
    assert (new.inputs[0], again.inputs[0]) == ((2, 1, 4), (2, 9, 4)) and again.outputs == ((2, 9, 6),)


@pytest.mark.parametrize(("one", "step"), [
    (call(2), DECODE), (call(18), DECODE), (call(20, kind="experts"), DECODE), (call(20), Step("prefill", 2, 10)),
])  # fmt: skip
def test_other_calls_stay_whole(one: Call, step: Step) -> None:
    assert shares(one, step) == (one,)
