"""What mixes tokens: attention, states, their positions, indexers and caches, from the kinds of layers."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dayzero.ops import cache_bytes_per_token
from dayzero.ops.indexer import INDEX_ITEM
from dayzero.placement import operators
from dayzero.placement.memory import value_bytes
from dayzero.schema import Attention, ModelSpec, Rope

from .parts import KEYS, ROWS, Axes, Part, Weight


def mixing(model: ModelSpec, weights: list[Weight]) -> Iterator[Part]:
    """What mixes tokens in each kind of layer, with its rotary positions, its indexer and what it adds to the cache."""
    item = value_bytes(model)
    yield from _tables(model, item)
    for name, attention in model.attentions.items():
        layers = tuple(index for index, layer in enumerate(model.layers) if layer.attention == name)
        own = [weight for weight in weights if not set(layers).isdisjoint(weight.family.layers)]
        module = _module_of(own, layers)
        if attention.kind == "none":
            continue
        if attention.kind == "linear":
            yield from _state(attention, own, module, layers, item)
            continue
        yield _softmax(attention, module, layers, item)
        yield Part("copy", "cache", module, layers,
                   {"elements": f"{ROWS} * {cache_bytes_per_token(attention, 1)}", "item": item})
        turned = _turned(attention, model.ropes.get(name))
        if turned:
            heads = attention.heads + attention.kv_heads
            yield Part("rotary", "", module, layers, _turning(heads, turned, item))
        if attention.index_heads:
            yield from _indexer(attention, own, turned, item)


def _module_of(weights: list[Weight], layers: tuple[int, ...]) -> str:
    """The module that holds the attention of these layers: that of its output projection."""
    roles = ("attention.o", "attention.o_down", "attention.q", "attention.qkv", "attention.q_up")
    found = [weight.module for role in roles for weight in weights if weight.family.role == role]
    return found[0].rpartition(".")[0] if found else ""


def _softmax(attention: Attention, module: str, layers: tuple[int, ...], item: float) -> Part:
    """Attention as released code computes it: of a latent cache each head has a key and a value of its own, unless what
    is cached is key and value as it is."""
    heads = 1 if attention.is_entry_head else attention.heads
    whole = msgspec.structs.replace(attention, kv_heads=heads) if attention.kind == "latent" else attention
    usual = operators.mixing(msgspec.structs.replace(whole, kind="full", window=None), 1, 1, 0, item).axes
    axes: Axes = {**usual, "sequences": "batch", "tokens": "tokens", "context": "context", "keys": KEYS, "window": KEYS}
    if attention.merged > 1:
        window = attention.near
        beside = f"min(context, {window}) + tokens" if window else KEYS
        axes |= {"merged": attention.merged, "top_k": _chosen(attention), "window": window or KEYS,
                 "keys": f"({KEYS}) // {attention.merged} + {beside}"}
        return Part("merged_attention", "sparse" if attention.index_top_k else "", module, layers, axes)
    if attention.window:
        axes |= {"keys": f"min(context, {attention.window}) + tokens", "window": attention.window}
    kind = attention.kind
    if attention.index_top_k:
        kind, axes["window"] = "sparse", _chosen(attention)
    return Part("attention", kind, module, layers, axes)


def _state(attention: Attention, weights: list[Weight], module: str, layers: tuple[int, ...], item: float
           ) -> Iterator[Part]:
    """The update of a constant state: of a delta rule where something says how much to replace, of a state space where
    there are no queries; one decay for each channel where steps come from a narrow projection, else for each head.
    Layers with convolutions alone have none."""
    roles = {weight.family.role for weight in weights}
    axes: Axes = {**operators.mixing(attention, 1, 1, 0, item).axes, "sequences": "batch", "tokens": "tokens"}
    if "linear.beta" in roles:
        yield Part("linear_attention", "", module, layers, axes)
    elif roles & {"attention.q", "attention.qkv"}:
        yield Part("gated_linear_attention", "", module, layers, axes)
    elif "linear.decay" in roles:
        del axes["v_head_dim"]
        widths = {"heads": attention.heads, "head_dim": attention.v_head_dim, "groups": attention.kv_heads}
        if "linear.step_down" in roles:
            widths = {"heads": attention.heads * attention.v_head_dim, "head_dim": 1, "groups": 1, "chunk": 1}
        yield Part("state_space", "", module, layers, {**axes, **widths, "state_dim": attention.head_dim})


def _indexer(attention: Attention, weights: list[Weight], turned: int, item: float) -> Iterator[Part]:
    """In the layers that have an indexer of their own: the choice, its rotary positions, and the keys that it keeps."""
    own = [weight for weight in weights if weight.word == "indexer"]
    if not own:
        return
    module, layers, width = own[0].module.rpartition(".")[0], own[0].family.layers, attention.index_head_dim
    yield Part("indexer", "", module, layers, {
        "sequences": "batch", "tokens": "tokens", "context": "context",
        "keys": KEYS if attention.merged == 1 else f"-(-({KEYS}) // {attention.merged})", "merged": attention.merged,
        "heads": attention.index_heads, "head_dim": width, "top_k": _chosen(attention), "item": item,
        "index_item": INDEX_ITEM})
    if turned:
        yield Part("rotary", "", module, layers, _turning(attention.index_heads + 1, turned, item))
    yield Part("copy", "cache", module, layers, {"elements": f"{ROWS} * {width}", "item": item})


def _chosen(attention: Attention) -> str:
    """Entries that a query looks at."""
    return f"min({KEYS}, {attention.index_top_k})" if attention.index_top_k else KEYS


def _turning(heads: int, turned: int, item: float) -> Axes:
    return {"tokens": ROWS, "heads": heads, "turned": turned, "table": 0, "item": item}


def _tables(model: ModelSpec, item: float) -> Iterator[Part]:
    """Angles of the positions, once for each way in which layers turn."""
    ways = {(_turned(attention, rope), rope.base, rope.scaling, rope.factor)
            for name, attention in model.attentions.items() if (rope := model.ropes.get(name))}
    for turned, *_ in sorted(ways, key=str):
        if turned:
            yield Part("rotary", "table", "", (), {"tokens": ROWS, "heads": 1, "turned": turned, "table": 1,
                                                   "item": item})


def _turned(attention: Attention, rope: Rope | None) -> int:
    """Width of the part of a head that turns; 0: nothing does, or the config does not say so."""
    if rope is None:
        return 0
    if attention.kind == "latent":
        return attention.rope_dim or 0
    return round(attention.head_dim * (rope.share or 1))
