"""A convolution's axes from its shapes: the weight is where the operator's definition has it, whatever the batch."""

from __future__ import annotations

import pytest

from dayzero.data.operators import operators
from dayzero.ops import OPERATORS
from dayzero.schema import Attention, Layer, ModelSpec
from dayzero.stages.trace.capture.captured import Call, Captured
from dayzero.stages.trace.grouping import group
from dayzero.stages.trace.grouping.group import value

CONV = "model.layers.0.conv1d"
TYPES = {"model": "M", "model.layers": "ModuleList", "model.layers.0": "Layer", CONV: "Conv1d"}
MADE = ModelSpec(
    name="made", architectures=(), model_type="", hidden_size=64, vocab_size=100, max_positions=None,
    tied_embeddings=False, layers=(Layer(attention="a", feed_forward="f"),),
    attentions={"a": Attention(kind="linear", heads=4, kv_heads=2, head_dim=16, v_head_dim=16)}, feed_forwards={},
    families=(), mtp_layers=0, parameters=0, parameters_text=0, parameters_active={}, checkpoint_bytes=0, dtype="bf16")


@pytest.mark.parametrize("batch", [1, 2, 3, 8])
@pytest.mark.parametrize(("op", "tokens"), [
    ("aten.convolution", 9), ("aten._convolution", 9), ("aten.conv1d", 9), ("dayzero.convolution", 9),
    ("aten.conv1d", 1), ("dayzero.convolution_update", 1), ("dayzero.convolution_update", 3)])
def test_the_weight_is_found(op: str, tokens: int, batch: int) -> None:
    channels, taps = 48, 4
    behind, own = (batch, channels, tokens + taps - 1), (batch, tokens, channels)
    inputs = {"aten": (behind, (channels, 1, taps), (channels,)),
              "dayzero.convolution": (own, (channels, taps), (channels,), (batch, channels, taps - 1)),
              "dayzero.convolution_update": (own, (batch, channels, taps), (channels, taps), (channels,))}
    shapes = inputs.get(op, inputs["aten"])
    output = own if op.startswith("dayzero") else (batch, channels, tokens)
    flops = 2 * batch * tokens * channels * taps
    call = Call(op, CONV, 0, (), "conv", shapes, (output,), "bf16", flops, 1)
    phase, context = ("prefill", 0) if tokens == 9 else ("decode", 20)
    run = Captured(phase=phase, batch=batch, tokens=tokens, context=context, calls=(call,), repeats={})
    one, = group(run, TYPES, MADE).groups
    assert (one.op, one.variant) == ("convolution", "")
    axes = {name: value(axis) for name, axis in one.axes.items()}
    assert OPERATORS.get("convolution").flops(axes) == flops
    assert axes == {"sequences": batch, "tokens": tokens, "channels": 48, "inner": 1, "kernel": 4, "item": 2,
                    "weight_item": 2}


def test_all_operators_of_the_table_are_here() -> None:
    assert operators().kinds["conv"] == {"aten.convolution", "aten._convolution", "aten.conv1d", "aten.conv2d",
                                         "dayzero.convolution", "dayzero.convolution_update"}
