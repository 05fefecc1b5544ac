"""Axes of what multiplies with weights: linear, experts, router, convolution; and of products of two activations."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import NamedTuple

from dayzero.stages.trace.capture.captured import Call
from dayzero.stages.trace.capture.kinds import BIAS_FIRST, plain

from .around import Around, Read
from .group import Axis, product

TRANSPOSED = ("aten.linear",)
"""Operators whose second tensor is [outer, inner]."""
WEIGHTS = {"dayzero.convolution_update": 2}
"""Which tensor of a convolution is its weight, where that is not the second."""


class Product(NamedTuple):
    """One matrix product: `groups` of [rows, inner] x [inner, outer]."""

    groups: int
    rows: int
    inner: int
    outer: int
    flops: int


def read_product(call: Call) -> Product | None:
    """The product that a call makes; None: it makes none that its shapes tell."""
    operands = call.inputs[1:] if plain(call.op) in BIAS_FIRST else call.inputs
    if len(operands) < 2:
        return None
    left, right = operands[0], operands[1]
    if len(left) == 3 and len(right) == 3:
        return Product(left[0], left[1], left[2], right[2], call.flops)
    outer = 1 if len(right) == 1 else right[0] if plain(call.op) in TRANSPOSED else right[-1]
    return Product(1, prod(left[:-1]), left[-1], outer, call.flops)


def _products(work: Sequence[Call], bases: Sequence[str]) -> list[Product]:
    kinds = ("linear", "matmul", "experts")
    found = (read_product(call) for call, base in zip(work, bases, strict=True) if base in kinds)
    return [one for one in found if one]


def linear(work: Sequence[Call], bases: Sequence[str], around: Around) -> Read | None:
    """One product with a weight; `head` when it gives a score for each token of the vocabulary, `expansion` when it is
    that of tokens in the cache."""
    found = _products(work, bases)
    if not found:
        return None
    one = found[0]
    again = any(call.kind == "expansion" for call in work)  # of the same call as a linear, which reads the weight
    variant = "expansion" if again else "head" if one.outer == around.vocab and not around.in_layer else ""
    axes: dict[str, Axis] = {
        "tokens": product(one.rows), "groups": product(one.groups), "inner": product(one.inner),
        "outer": product(one.outer), "item": around.item, "weight_item": 0 if again else around.weight_item,
    }  # fmt: skip
    return "linear", variant, axes


def matmul(work: Sequence[Call], bases: Sequence[str], around: Around) -> Read | None:
    """A product of two activations."""
    found = _products(work, bases)
    if not found:
        return None
    one = found[0]
    return "matmul", "", {"products": product(one.groups), "tokens": product(one.rows), "inner": product(one.inner),
                          "outer": product(one.outer), "item": around.item}  # fmt: skip


def router(work: Sequence[Call], bases: Sequence[str], around: Around) -> Read | None:
    """The product that scores the experts, and the choice."""
    found = _products(work, bases)
    if not found:
        return None
    one = max(found, key=lambda each: each.rows * each.inner)
    axes: dict[str, Axis] = {
        "tokens": product(one.rows), "hidden": product(one.inner), "experts": product(one.outer),
        "item": around.item, "weight_item": around.weight_item, "score_item": 4,
    }  # fmt: skip
    return "router", "", axes


def experts(work: Sequence[Call], bases: Sequence[str], around: Around) -> Read | None:
    """Products of rows with the matrices of their experts. The last one leads back to the model's width; how many an
    expert has follows from the operations of all of them."""
    found = _products(work, bases)
    if not found:
        return None
    width, hidden = found[-1].inner, found[-1].outer
    down = sum(one.groups * one.rows for one in found if (one.inner, one.outer) == (width, hidden))
    if not width * hidden * down:
        return None
    matrices = round(sum(one.groups * one.rows * one.inner * one.outer for one in found) / (width * hidden * down))
    stacks = [call.inputs[1][0] for call, base in zip(work, bases, strict=True)
              if base in ("experts", "matmul") and len(call.inputs) > 1 and len(call.inputs[1]) == 3]
    block = around.feed_forward
    held = max(stacks, default=block.experts if block else 0)
    top_k = block.visited if block and block.top_k else max(1.0, round(down / around.rows))
    held = max(held, ceil(top_k))  # a config may call a block dense that its code makes of one expert
    axes: dict[str, Axis] = {
        "tokens": product(around.rows), "experts": product(held), "top_k": top_k,
        "matrices": product(matrices), "hidden": product(hidden), "width": product(width), "item": around.item,
        "weight_item": around.weight_item,
    }  # fmt: skip
    return "experts", "", axes


def convolution(work: Sequence[Call], bases: Sequence[str], around: Around) -> Read | None:
    """A filter along the sequence, [sequences, channels, positions] by [channels, inner, taps]; `patch`: of a tower."""
    calls = [(call, call.inputs[at]) for call, base in zip(work, bases, strict=True)
             if base == "conv" and len(call.outputs[0]) > 1
             and len(call.inputs) > (at := WEIGHTS.get(plain(call.op), 1)) and len(call.inputs[at]) > 1]
    axes: dict[str, Axis] = {"item": around.item, "weight_item": around.item}
    if not calls:
        return _filter(work, around, axes)
    call, weight = calls[0]
    channels = weight[0]
    inner, taps = (weight[1], prod(weight[2:])) if len(weight) > 2 else (1, weight[1])
    positions = around.tokens if around.in_layer else prod(call.outputs[0][2:])
    sequences = around.batch if around.in_layer else call.outputs[0][0]
    axes |= {"sequences": product(sequences), "tokens": product(positions), "channels": product(channels),
             "inner": product(inner), "kernel": product(taps)}
    return "convolution", "" if inner == 1 else "patch", axes


def _filter(work: Sequence[Call], around: Around, axes: dict[str, Axis]) -> Read | None:
    """The same by hand, for one token: the window [sequences, channels, taps] times the weights, then the sum."""
    shapes = [call.inputs[0] for call in work if plain(call.op) == "aten.mul" and len(call.inputs) == 2
              and len(call.inputs[0]) == 3 and call.inputs[0][1:] == call.inputs[1][-2:]]
    if not shapes:
        return None
    sequences, channels, taps = shapes[0]
    return "convolution", "", axes | {"sequences": product(sequences), "tokens": product(around.tokens),
                                      "channels": product(channels), "inner": product(1), "kernel": product(taps)}
