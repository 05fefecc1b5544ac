"""The trace of the real demo model against its published dimensions."""

from __future__ import annotations

from pathlib import Path

import pytest

from dayzero.stages.trace import to_contract, trace


@pytest.fixture(scope="module")
def graph(real_model: Path):
    from dayzero.stages.read import read

    return trace(read(real_model), tokens=64, context=64)


def test_operations_are_twice_the_parameters_for_each_token(graph) -> None:
    # SmolLM2-135M: 134,515,008 parameters, the embedding tied to the head, so that every matrix is used once a token.
    assert graph.parameters == 134_515_008
    for phase, tokens in (("prefill", 64), ("decode", 1)):
        linear = sum(call.flops for call in graph.operators if call.phase == phase and call.kind == "linear")
        assert linear == pytest.approx(2 * 134_515_008 * tokens, rel=0.01)


def test_attention_in_closed_form(graph) -> None:
    layers, heads, head_dim = 30, 9, 64
    for phase, new, seen in (("prefill", 64, 64), ("decode", 1, 65)):
        counted = sum(call.flops for call in graph.operators if call.phase == phase and call.kind == "attention")
        assert counted == 4 * layers * heads * head_dim * new * seen


def test_a_decode_step_reads_all_weights_once(graph) -> None:
    linear = sum(call.bytes for call in graph.operators if call.phase == "decode" and call.kind == "linear")
    assert linear == pytest.approx(2 * 134_515_008, rel=0.01)


def test_nothing_is_missing_and_it_is_quick(graph) -> None:
    assert graph.missing == () and not [call for call in graph.operators if call.kind == "other"]
    assert [(kind.layers, len(kind.layers)) for kind in graph.layer_kinds] == [(tuple(range(30)), 30)]
    assert graph.seconds < 20
    assert to_contract(graph)["parameters_text"] == graph.parameters
