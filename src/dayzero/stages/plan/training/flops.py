"""Operations of a step that the model asks for, whoever computes them: what MFU and TFLOPS per device are told by."""

from __future__ import annotations

from math import inf

from dayzero.ops import OPERATORS, attention_axes, linear_axes
from dayzero.placement.operators import product, routing_block
from dayzero.placement.split import is_expert, is_mtp
from dayzero.schema import ModelSpec

from .load import layer_families

UNGATED = 2 / 3
"""Of the matrices of a gated expert those that one without a gate has."""


def multiplied(model: ModelSpec, gated: bool = True) -> float:
    """Parameters that one token is multiplied with: matrices of layers, of experts those that it visits, the head.
    With `gated` false experts are counted without their gates."""
    count = float(model.hidden_size * model.vocab_size)
    for family in model.families:
        if (not family.parameters or len(family.shape) < 2 or not family.layers or is_mtp(family, model)
                or not product(family, model)):
            continue
        block = routing_block(family, model) if is_expert(family) else None
        visited = block.visited / family.experts * (1.0 if gated else UNGATED) if block else 1.0
        count += family.parameters * visited
    return count


def mixing_flops(model: ModelSpec, sequence: int, causal: bool = True, windows: bool = True) -> float:
    """Operations of the cores of attention, forward, for one token of a sequence; causal, or as if each token saw
    all. With `windows` false as if attention had none."""
    total = 0.0
    for layer in model.layers:
        attention = model.attentions[layer.attention]
        if attention.kind == "linear":
            total += OPERATORS.get("linear_attention").flops(linear_axes(attention, 1, sequence, 2)) / sequence
        elif causal:
            axes = attention_axes(attention, 1, sequence, 0)
            total += OPERATORS.get("attention").flops(axes if windows else {**axes, "window": inf}) / sequence
        else:
            total += 2 * attention.heads * (attention.head_dim + attention.v_head_dim) * sequence
    return total


def token_flops(model: ModelSpec, sequence: int, *, drafts: int = 0, frozen: bool = False, gated: bool = True,
                windows: bool = True) -> float:
    """Operations for one token of a training step: three times forward, 6 N + 3 mixing; with `frozen` weights twice.
    Each draft layer counts as the last layer, what joins its two inputs, and the head. `gated`, `windows`: whether
    gates of experts and windows of attention count."""
    weights, mixing = multiplied(model, gated), mixing_flops(model, sequence, windows=windows)
    if drafts:
        index, hidden = len(model.layers) - 1, model.hidden_size
        layer = 0.0
        for family in layer_families(model, index):
            block = routing_block(family, model) if is_expert(family) else None
            layer += family.parameters / len(family.layers) * (block.visited / family.experts if block else 1.0)
        weights += drafts * (layer + 2 * hidden**2 + hidden * model.vocab_size)
        mixing += drafts * mixing / len(model.layers)
    return (2 if frozen else 3) * (2 * weights + mixing)
