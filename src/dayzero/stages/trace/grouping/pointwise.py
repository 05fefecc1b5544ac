"""Axes of what computes little and moves much: norms, embedding, copies, pointwise operations, sampling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dayzero.stages.trace.capture.captured import Call
from dayzero.stages.trace.capture.kinds import plain

from .around import Around, Read
from .group import Axis, product

REDUCTIONS = ("aten.mean", "aten.sum", "aten.var", "aten.var_mean", "aten.linalg_vector_norm")
"""Operators that take a norm's statistics, when it is written out."""
NEW = ("aten.zeros", "aten.new_zeros", "aten.zeros_like")
"""Operators that make a table of zeros."""
MOVING = ("copy", "fill", "select")
"""Kinds that compute nothing."""


def norm(work: Sequence[Call], bases: Sequence[str], around: Around) -> Read | None:
    """Rows and their width, from the call that takes the statistics; several norms of one function are one."""
    fused = [call for call, base in zip(work, bases, strict=True) if base == "norm"]
    taken = fused or [call for call in work if plain(call.op) in REDUCTIONS]
    shapes = [call.inputs[0] for call in taken if call.inputs and call.inputs[0]]
    if not shapes:
        return None
    width = shapes[0][-1]
    names = {plain(call.op) for call in work}
    gated = bool(names & {"aten.silu", "aten.sigmoid", "aten.gelu"})
    layer = names & {"aten.native_layer_norm", "aten.var", "aten.var_mean", "aten.native_group_norm"} or any(
        plain(call.op) == "aten.sub" for call in work)
    length = not fused and "aten.sum" in names and "aten.mean" not in names
    variant = "gated" if gated else "layer" if layer else "l2" if length else "rms"
    rows = tuple(shape[:-1] for shape in shapes if shape[-1] == width)
    axes: dict[str, Axis] = {"tokens": rows, "hidden": product(width), "item": around.item,
                             "weight_item": around.weight_item}
    return "norm", variant, axes


def embedding(work: Sequence[Call], bases: Sequence[str], around: Around) -> Read | None:
    """Rows looked up."""
    call = next((call for call in work if plain(call.op) == "aten.embedding"), None)
    if call is None:
        return None
    *rows, hidden = call.outputs[0]
    return "embedding", "", {"tokens": product(*rows), "hidden": product(hidden), "item": around.item}


def sampling(work: Sequence[Call], bases: Sequence[str], around: Around) -> Read | None:
    """Rows of scores and their width."""
    shapes = [shape for call in work for shape in call.inputs if shape] or [(1,)]
    *rows, vocab = sorted(shapes, key=lambda shape: prod(shape))[-1]
    return "sampling", "", {"tokens": product(*rows), "vocab": product(vocab), "item": around.item}


def cache(work: Sequence[Call], bases: Sequence[str], around: Around) -> Read | None:
    """New entries: the last argument of each concatenation and the values that others write; a new table of zeros is
    written whole."""
    writes = [call for call, base in zip(work, bases, strict=True) if call.outputs and 0 not in call.outputs[0]]
    terms = tuple(call.inputs[-1] if plain(call.op) == "aten.cat" and call.inputs else call.outputs[0]
                  for call in writes if plain(call.op) not in (*NEW, "aten._to_copy"))
    terms = tuple(term for term in terms if term)
    return ("copy", "cache", {"elements": terms, "item": around.item}) if terms else None


def residual(work: Sequence[Call], bases: Sequence[str], around: Around) -> Read:
    """The addition to the residual stream."""
    axes: dict[str, Axis] = {"elements": product(*work[0].outputs[0]), "operands": 2, "operations": 1,
                             "item": around.item}
    return "elementwise", "residual", axes


def run(work: Sequence[Call], bases: Sequence[str], around: Around) -> Read:
    """Pointwise calls as if they were one: elements of the largest result, how many operations each takes (those of
    products that belong nowhere else among them), and how many tensors of that size come from outside. Calls that only
    move are a copy."""
    computing = [call for call, base in zip(work, bases, strict=True) if base not in MOVING and call.outputs]
    if not computing:
        moved = [call.outputs[0] for call in work if call.outputs]
        return "copy", "", {"elements": tuple(moved) or product(0), "item": around.item}
    shape = max((call.outputs[0] for call in computing), key=prod)
    size = prod(shape)
    whole = [call for call in computing if size in map(prod, (*call.outputs, *call.inputs))]
    read = sum(len(s) == len(shape) and prod(s) == size for call in whole for s in call.inputs) - (len(whole) - 1)
    products = round(sum(call.flops for call in work) / max(1, size))
    variant = "activation" if "activation" in bases else ""
    axes: dict[str, Axis] = {"elements": product(*shape), "operands": max(1, read), "operations": len(whole) + products,
                             "item": around.item}
    return "elementwise", variant, axes
