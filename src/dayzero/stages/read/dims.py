"""Dimensions of one kind of attention or feed-forward block: from the headers of most of its layers, or the config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from dayzero.schema import Attention, FeedForward

from .config import Config
from .facts import Facts
from .families import Part
from .layers import least_merged


class Seen:
    """Logical shapes of the weights in the layers of one kind."""

    def __init__(self, parts: Iterable[Part], layers: frozenset[int]) -> None:
        self._shapes: dict[str, Counter[tuple[tuple[int, ...], str]]] = {}
        for part in parts:
            here = len(layers.intersection(part.family.layers))
            if here and part.is_weight and not part.role.scope:
                shapes = self._shapes.setdefault(part.role.name, Counter())
                shapes[part.shape, part.family.pattern] += here

    def rows(self, role: str) -> tuple[int, str] | None:
        """(rows of the [out, in] matrix, name pattern) in most layers; None if there is no such weight."""
        return self._size(role, -2)

    def columns(self, role: str) -> tuple[int, str] | None:
        """(columns, name pattern) in most layers; None if there is no such weight."""
        return self._size(role, -1)

    def _size(self, role: str, axis: int) -> tuple[int, str] | None:
        if role not in self._shapes:
            return None
        (shape, pattern), _ = self._shapes[role].most_common(1)[0]
        return (shape[axis], pattern) if len(shape) >= 2 else None


class Chosen:
    """Picks values, header before config, and notes where each is from and what says otherwise."""

    def __init__(self, config: Config, facts: Facts) -> None:
        self.config = config
        self.facts = facts

    def pick(self, fact: str, header: tuple[int, str] | None, divisor: int = 1, less: int = 0) -> int:
        """`header / divisor - less` if there is such a header and it divides, else the config's value, else 0."""
        stated = self.facts.get(fact)
        if header is None or header[0] % divisor or header[0] // divisor <= less:
            return stated or 0
        value = header[0] // divisor - less
        source = self.config.sources.get(fact, "")
        if value != stated or source.startswith("default"):
            differs = stated is not None and not source.startswith(("default", "header"))
            self.config.note(fact, f"header: {header[1]}" + (f" ({source} says {stated})" if differs else ""))
        return value


def attention(name: str, facts: Facts, seen: Seen, config: Config) -> Attention:
    """The dimensions of a kind, or of `kind/tokens that share an entry`. Heads are the config's: no header tells how
    rows are divided into them."""
    choose = Chosen(config, facts)
    kind, _, merged = name.partition("/")
    if kind == "latent":
        return _latent(facts, seen, choose, int(merged or 1))
    if kind == "linear":
        return _linear(facts, seen, choose)
    if kind == "none":
        return Attention(kind=kind, heads=0, kv_heads=0, head_dim=0, v_head_dim=0)
    own = "sliding_" if kind == "sliding" and "sliding_heads" in facts else ""
    kv_heads = _kv_heads(own, facts, seen, config)
    return Attention(kind=kind, heads=facts[own + "heads"], kv_heads=kv_heads,
                     head_dim=choose.pick(own + "head_dim", seen.rows("attention.k"), kv_heads),
                     v_head_dim=choose.pick(own + "v_head_dim", seen.rows("attention.v"), kv_heads),
                     window=facts.get("window") if kind == "sliding" else None,
                     chunked=kind == "sliding" and "chunk" in facts,
                     **(_indexer(facts) if kind == "sparse" else {}))  # fmt: skip


def _indexer(facts: Facts) -> dict[str, Any]:
    """Sizes of what chooses the entries that a query looks at; empty: nothing does."""
    return {name: facts[name] for name in ("index_heads", "index_head_dim", "index_top_k") if name in facts}


def _kv_heads(own: str, facts: Facts, seen: Seen, config: Config) -> int:
    """Key/value heads: the config's; where it states none, what the query's heads leave of fused rows."""
    heads, stated, width = facts[own + "heads"], facts[own + "kv_heads"], facts[own + "head_dim"]
    fused = seen.rows("attention.qkv")
    if fused is None or not config.sources.get(own + "kv_heads", "").startswith("default"):
        return stated
    both = fused[0] - heads * width
    derived = both // (2 * width)
    if both != derived * 2 * width or derived < 1 or heads % derived:
        return stated
    config.note(own + "kv_heads", f"header: {fused[1]}")
    return derived


def _latent(facts: Facts, seen: Seen, choose: Chosen, merged: int) -> Attention:
    """`merged`: tokens that share an entry; 0: a window is all that is kept."""
    heads = facts["heads"]
    rank = choose.pick("kv_rank", seen.columns("attention.kv_up"))
    q_rank = choose.pick("q_rank", seen.columns("attention.q_up")) or None
    if down := seen.rows("attention.qkv_down"):
        rope = choose.pick("rope_dim", down, less=rank + (q_rank or 0))
    else:
        rope = choose.pick("rope_dim", seen.rows("attention.kv_down"), less=rank)
    query = seen.rows("attention.q_up") or seen.rows("attention.q")
    nope = choose.pick("nope_dim", query, heads, less=rope)
    whole = None if "output_groups" in facts else seen.columns("attention.o")
    value = choose.pick("v_head_dim", whole, heads)
    choose.config.note("head_dim", choose.config.sources.get("nope_dim", "default: 0"))
    return Attention(kind="latent", heads=heads, kv_heads=1, head_dim=nope + rope, v_head_dim=value, q_rank=q_rank,
                     kv_rank=rank, rope_dim=rope, window=None if merged else facts.get("window"),
                     merged=max(1, merged), near=facts.get("window") if merged > 1 else None,
                     output_groups=facts.get("output_groups", 0),
                     **(_indexer(facts) if merged == least_merged(choose.config, facts) else {}))  # fmt: skip


def _linear(facts: Facts, seen: Seen, choose: Chosen) -> Attention:
    for name in ("heads", "head_dim"):
        if f"linear_{name}" not in facts:
            facts[f"linear_{name}"] = facts[name]
            choose.config.note(f"linear_{name}", f"default: as {name} of the other layers")
            choose.config.unclear.append(f"linear attention: {name} of its state not stated (taken as of the other "
                                         "layers)")
    facts.setdefault("linear_kv_heads", facts["linear_heads"])
    facts.setdefault("linear_v_head_dim", facts["linear_head_dim"])
    heads, kv_heads = facts["linear_heads"], facts["linear_kv_heads"]
    conv = seen.columns("linear.conv")
    return Attention(kind="linear", heads=heads, kv_heads=kv_heads,
                     head_dim=choose.pick("linear_head_dim", seen.rows("attention.k"), kv_heads),
                     v_head_dim=choose.pick("linear_v_head_dim", seen.columns("attention.o"), heads),
                     conv_kernel=choose.pick("conv_kernel", conv) or None)  # fmt: skip


def feed_forward(kind: str, facts: Facts, seen: Seen, config: Config) -> FeedForward:
    """The kind's dimensions."""
    choose = Chosen(config, facts)
    if kind == "none":
        return FeedForward(kind=kind, width=0, input_width=0)
    if kind == "dense":
        return FeedForward(kind=kind, width=choose.pick("dense_width", seen.columns("mlp.down")),
                           input_width=facts["hidden_size"])  # fmt: skip
    zero = facts.get("zero_experts", 0)
    experts = choose.pick("experts", seen.rows("router"), less=zero)
    shared = choose.pick("shared_width", seen.columns("shared_experts.down"))
    return FeedForward(kind=kind, width=choose.pick("expert_width", seen.columns("experts.down")),
                       input_width=choose.pick("expert_input", seen.rows("experts.down")), experts=experts,
                       top_k=min(facts.get("top_k", 0), experts + zero), zero_experts=zero, shared_width=shared,
                       shared_experts=facts.get("shared_experts", int(shared > 0)))  # fmt: skip
