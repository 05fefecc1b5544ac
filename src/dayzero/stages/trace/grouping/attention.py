"""Axes of what mixes tokens: softmax attention, state updates, the indexer of a sparse attention, rotary positions and
masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

from dayzero.ops import CHUNK, STATE_ITEM
from dayzero.schema import Attention
from dayzero.stages.trace.capture.captured import Call, Shapes
from dayzero.stages.trace.capture.kinds import plain

from .around import Around, Read
from .group import Axis, Terms, product, value
from .pointwise import MOVING, NEW, cache
from .products import read_product

OWN = "dayzero."
"""Operators of this project hold heads behind tokens, [sequences, tokens, heads, width]; others before them."""


def softmax(work: Sequence[Call], bases: Sequence[str], around: Around) -> Read | None:
    """Queries against keys: from a fused call, or from the product before the softmax and the one behind it."""
    fused = next((call for call, base in zip(work, bases, strict=True) if base == "attention"), None)
    found = _fused(fused, around) if fused else _written_out(work, bases, around)
    if found is None:
        return None
    sequences, tokens, keys, heads, head_dim, v_head_dim, kv_heads = found
    spec = around.attention
    kind = spec.kind if spec and spec.kind != "linear" else "full"
    if spec and kind != "latent" and heads == spec.heads and spec.kv_heads < kv_heads:
        kv_heads = spec.kv_heads
    context = around.context if around.in_layer else max(0, keys - tokens)
    axes: dict[str, Axis] = {
        "sequences": product(sequences), "tokens": product(tokens), "context": product(context), "keys": product(keys),
        "heads": product(heads), "kv_heads": product(kv_heads), "head_dim": product(head_dim),
        "v_head_dim": product(v_head_dim), "item": around.item,
    }  # fmt: skip
    if spec and spec.merged > 1:
        entries = (context + tokens) // spec.merged
        near = spec.near or around.window or min(keys - entries, context + tokens)
        axes |= {"kv_heads": product(spec.kv_heads), "window": product(near),
                 "merged": product(spec.merged), "top_k": product(around.top_k or context + tokens)}
        return "merged_attention", "sparse" if around.top_k else "", axes
    kind = "sparse" if around.top_k else kind
    window = around.top_k or (spec.window if spec else None) or (keys if kind == "sliding" else None)
    return "attention", kind, axes | {"window": product(window or context + tokens)}


def _fused(call: Call, around: Around) -> tuple[int, ...] | None:
    shapes = [shape for shape in call.inputs if len(shape) > 2]
    if len(shapes) < 2:
        return None
    query, key, value = shapes[0], shapes[1], shapes[2] if len(shapes) > 2 else shapes[1]
    if not call.op.startswith(OWN):
        sequences, tokens = (around.batch, around.tokens) if around.in_layer else (prod(query[:-3]), query[-2])
        heads = prod(query[:-1]) // max(1, sequences * tokens)  # those that share a key may lie among the tokens
        return sequences, tokens, key[-2], heads, query[-1], value[-1], key[-3]
    tokens, sequences = around.tokens, around.batch
    width = call.outputs[0][-1] if call.outputs else value[-1]
    return (sequences, tokens, around.context + tokens, query[-2], query[-1], width, key[-2])


def _written_out(work: Sequence[Call], bases: Sequence[str], around: Around) -> tuple[int, ...] | None:
    products = [read_product(call) for call, base in zip(work, bases, strict=True) if base == "matmul"]
    found = [one for one in products if one]
    if len(found) < 2:
        return None
    scores, values = found[0], found[-1]
    rows = scores.groups * scores.rows
    sequences, tokens = (around.batch, around.tokens) if around.in_layer else (1, scores.rows)
    heads = rows // max(1, sequences * tokens)
    repeated = [call.outputs[0] for call in work if call.outputs and len(call.outputs[0]) == 5]
    shared = next((shape[1] for shape in repeated if shape[1] * shape[2] == heads), heads)
    return sequences, tokens, scores.outer, heads, scores.inner, values.outer, shared


def state(work: Sequence[Call], bases: Sequence[str], around: Around) -> Read | None:
    """A state of constant size, updated chunk by chunk; from the operator that stands in for a kernel, else the widths
    are the ModelSpec's."""
    own = next((call for call, base in zip(work, bases, strict=True) if base == "state"), None)
    axes: dict[str, Axis] = {"sequences": product(around.batch), "tokens": product(around.tokens),
                             "item": around.item, "state_item": STATE_ITEM}
    if own is not None:
        return _stand_in(own, axes)
    spec = around.attention
    if not any(call.outputs and base not in MOVING for call, base in zip(work, bases, strict=True)):
        return cache(work, bases, around)
    shape = _state_shape(work, around)
    if spec is None or spec.kind != "linear":
        spec = Attention(kind="linear", heads=shape[1], kv_heads=1, head_dim=shape[3], v_head_dim=shape[2]
                         ) if shape else None  # as a state space has it: [sequences, heads, width, state]
    if spec is None:
        return None
    words = " ".join([around.module_type, *(name for call in work for name in call.functions)]).lower()
    axes["chunk"] = product(CHUNK)
    if any(word in words for word in ("mamba", "scan", "ssd", "segment_sum", "state_space")):
        if around.tokens > 1 and "matmul" not in bases:  # token by token: chunks would meet in products
            axes["chunk"] = product(1)
        return "state_space", "", axes | _scanned(spec)
    heads, key, value = shape[1:] if shape else (spec.heads, spec.head_dim, spec.v_head_dim)
    name = "linear_attention" if "delta" in words or "kda" in words or "gdn" in words else "gated_linear_attention"
    return name, "", axes | {"heads": product(heads), "head_dim": product(key), "v_head_dim": product(value)}


def _state_shape(work: Sequence[Call], around: Around) -> tuple[int, ...]:
    """[sequences, heads, width of a key, width of a value] of the state: as the ModelSpec says when a tensor has that
    shape; else a table of zeros that is made before the first token, or the largest that a single token changes.
    Empty: the calls do not show it."""
    shapes = [shape for call in work for shape in (*call.inputs, *call.outputs) if len(shape) == 4]
    spec = around.attention
    if spec and (stated := (around.batch, spec.heads, spec.head_dim, spec.v_head_dim)) in shapes:
        return stated
    made = shapes if around.tokens == 1 else [
        (*shape[:1], *shape[-3:]) for call in work for shape in call.outputs[:1] if plain(call.op) in NEW
        and (len(shape) == 4 or (len(shape) == 5 and shape[1] == 1))]
    fitting = [shape for shape in made if len(shape) == 4 and shape[0] == around.batch and min(shape[2:]) > 1]
    return (max if around.tokens == 1 else min)(fitting, key=prod, default=())


def _scanned(spec: Attention) -> dict[str, Axis]:
    return {"heads": product(spec.heads), "head_dim": product(spec.v_head_dim), "state_dim": product(spec.head_dim),
            "groups": product(spec.kv_heads)}


def _stand_in(call: Call, axes: dict[str, Axis]) -> Read | None:
    name = plain(call.op).removeprefix(OWN)
    if len(call.inputs) < 4 or min(map(len, call.inputs[:3])) < 2:
        return None
    if name in ("delta_rule", "linear_attention"):
        key, value = call.inputs[1], call.inputs[2]
        widths: dict[str, Axis] = {"heads": product(value[-2]), "head_dim": product(key[-1]),
                                   "v_head_dim": product(value[-1]), "chunk": product(CHUNK)}
        return "linear_attention" if name == "delta_rule" else "gated_linear_attention", "", axes | widths
    shapes = call.inputs[1:] if name == "state_space_update" else call.inputs
    x, b = shapes[0], shapes[min(3, len(shapes) - 1)]
    if len(shapes) < 4 or min(len(x), len(b)) < 3:
        return None
    if name == "selective_scan":  # [sequences, channels, tokens] and one decay for a channel: no chunks
        heads, width, chunk = x[1], 1, 1
        groups, wide = (b[1], b[2]) if len(b) > 3 else (1, b[-2])
    else:
        heads, width, groups, wide, chunk = x[-2], x[-1], b[-2], b[-1], CHUNK
    return "state_space", "", axes | {
        "heads": product(heads), "head_dim": product(width), "groups": product(groups), "state_dim": product(wide),
        "chunk": product(chunk)}  # fmt: skip


def indexer(work: Sequence[Call], bases: Sequence[str], around: Around) -> Read | None:
    """Scores of all entries and the choice of the largest."""
    found = [one for call, base in zip(work, bases, strict=True) if base == "matmul" and (one := read_product(call))]
    chosen = next((call.outputs[0][-1] for call in work if plain(call.op) == "aten.topk"), None)
    if not found or chosen is None:
        return None
    scores = found[0]
    axes: dict[str, Axis] = {
        "sequences": product(around.batch), "tokens": product(around.tokens), "context": product(around.context),
        "keys": product(scores.outer), "merged": product(around.attention.merged if around.attention else 1),
        "heads": product(scores.groups * scores.rows // around.rows), "head_dim": product(scores.inner),
        "top_k": product(chosen), "item": around.item, "index_item": 4,
    }  # fmt: skip
    return "indexer", "", axes


def rotary(work: Sequence[Call], bases: Sequence[str], around: Around) -> Read | None:
    """Cosines and sines of positions, or their application to heads.

    An application shows as products of heads with a table that all heads share: two of the whole width where the
    halves are swapped by a copy, four of half of it where they are not, one of half of it for complex numbers.
    """
    angles = [call for call in work if plain(call.op) in ("aten.cos", "aten.polar")]
    if angles:
        *rows, width = angles[0].outputs[0]
        alike = [call.outputs[0][-1] for call in work if len(call.outputs[0]) == len(rows) + 1]
        turned = width if width == max(alike) and "aten.cat" in {call.op for call in work} else 2 * width
        return "rotary", "table", {"tokens": product(*rows), "heads": 1, "turned": product(turned), "table": 1,
                                   "item": around.item}
    terms, turned = _turned(work)
    if not turned:
        return None
    turns = int(value(terms))
    entries = bool(around.attention and around.attention.merged > 1)  # some are those of entries, not of tokens
    even = not entries and turns % around.rows == 0
    return "rotary", "", {"tokens": product(around.rows) if even else terms, "turned": product(turned), "table": 0,
                          "heads": product(turns // around.rows if even else 1), "item": around.item}


def _turned(work: Sequence[Call]) -> tuple[Terms, int]:
    """(heads of all tokens together, width of the part that turns); width 0 when the calls do not show it."""
    own = [call.inputs for call in work if call.op == f"{OWN}rotary" and len(call.inputs) > 1]
    if own:
        width = 2 * own[0][1][-1]
        return tuple(shapes[0][:-1] for shapes in own), width
    tables = [call.inputs for call in work if plain(call.op) == "aten.mul" and _is_turn(call.inputs)]
    if not tables:
        return (), 0
    swapped = any(plain(call.op) == "aten.neg" for call in work)
    is_complex = any("complex" in call.dtype for call in work)
    times, factor = (2, 1) if swapped else (1, 2) if is_complex else (4, 2)
    turns = Counter(max(shapes, key=prod)[:-1] for shapes in tables)
    terms = tuple(heads for heads, number in turns.items() for _ in range(max(1, number // times)))
    return terms, factor * max(shapes[0][-1] for shapes in tables)


def _is_turn(shapes: Shapes) -> bool:
    """Whether two tensors of equal width meet, one of which has no heads."""
    return (len(shapes) == 2 and all(len(shape) > 2 for shape in shapes) and shapes[0][-1] == shapes[1][-1]
            and len(shapes[0]) == len(shapes[1]))


def mask(work: Sequence[Call], bases: Sequence[str], around: Around) -> Read | None:
    """The largest table."""
    tables = [call for call in work if call.outputs and len(call.outputs[0]) > 2]
    if not tables:
        return None
    *sequences, tokens, keys = max((call.outputs[0] for call in tables), key=prod)
    return "mask", "", {"sequences": product(*sequences), "tokens": product(tokens), "keys": product(keys), "item": 1}
