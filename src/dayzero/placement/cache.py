"""What an engine allocates for keys, values and states on one rank, and how many tokens that holds.

Mathematical need: `ops.cache`. Engines differ in what they store for a token (a latent entry with scales beside it), in
blocks of whole tokens, and in how layers of different kinds share one pool:
unified pages  layers are dealt out to groups of as many layers as the rarest kind has; every group has pages of as many
               bytes, a page of a linear layer being one state, and a sequence takes pages of every group
pools apart    a share of the memory is for states, and sliding layers have a share of the tokens of full ones
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import ceil

from dayzero.ops import cache_bytes_per_token
from dayzero.schema import Attention, Layout, ModelSpec
from dayzero.schema.allocation import Allocation

from .memory import layer_state_bytes, value_bytes

NARROW = 1
"""Bytes of a cached value of 8 bits."""
_LONGER_GROUPS = 1.5
"""Groups are as long as the most frequent kind when it is less than this many times the rarest (unified pages)."""


@dataclass(frozen=True)
class Kind:
    """Layers of a stage that keep the same of a sequence, on one rank."""

    layers: int
    """How many there are."""
    entry: int
    """Bytes for a token; 0: it does not grow."""
    state: int
    """Bytes of constant size for a sequence."""
    window: int | None
    """Tokens that are kept; None: all."""
    latent: bool
    """Whether the entry is a compressed one."""


def entry_bytes(attention: Attention, layout: Layout, allocation: Allocation, model: ModelSpec, dtype: str) -> int:
    """Bytes that the engine stores for one token of one layer on one rank. `dtype`: auto, fp8 or a name of the engine's
    own (`Allocation.entry_bytes`)."""
    item = value_bytes(model) if dtype in ("", "auto") else NARROW
    if attention.kind == "latent":
        if not allocation.latent_cache:
            return ceil(attention.heads / layout.attention_degree) * 2 * allocation.materialized_head * item
        return allocation.entry_bytes.get(dtype) or cache_bytes_per_token(attention, item)
    whole = cache_bytes_per_token(attention, item)
    degree = max(1, layout.attention_degree // layout.cp)
    return whole // attention.kv_heads * ceil(attention.kv_heads / degree) if whole else 0


def kinds(model: ModelSpec, layout: Layout, allocation: Allocation, layers: range, dtype: str) -> list[Kind]:
    """The kinds of layers of a stage, those that grow with the sequence first."""
    counted: Counter[Kind] = Counter()
    for index in layers:
        attention = model.attentions[model.layers[index].attention]
        window = attention.window if allocation.bounded_windows else None
        counted[Kind(layers=0, entry=entry_bytes(attention, layout, allocation, model, dtype),
                     state=layer_state_bytes(attention, layout), window=window,
                     latent=attention.kind == "latent" and allocation.latent_cache)] += 1
    made = [Kind(layers=count, entry=kind.entry, state=kind.state, window=kind.window, latent=kind.latent)
            for kind, count in counted.items()]
    return sorted(made, key=lambda kind: (kind.entry == 0, kind.window is not None))


@dataclass(frozen=True)
class Room:
    """What a pool of some bytes holds."""

    tokens: int
    """Tokens, as the engine reports them."""
    sequences: float
    """Sequences of the asked length that fit together."""


@dataclass(frozen=True)
class Pages:
    """Unified pages: all kinds of layers take pages of the same bytes from one pool."""

    page_bytes: int
    """One page of one layer."""
    group_layers: int
    """Layers of a group; a page of a group is one page for each of them."""
    groups: int
    """Groups, of all kinds together."""
    tokens: int
    """Tokens in a page of the kind that grows with the sequence."""
    kinds: tuple[tuple[Kind, int, int], ...]
    """(kind, its groups, its tokens in a page)."""

    def pages_of(self, length: int, step: int) -> int:
        """Pages that a sequence of `length` tokens takes, over all groups; a sliding layer keeps its window and what
        one step of `step` tokens adds."""
        taken = 0
        for kind, groups, tokens in self.kinds:
            kept = length if kind.window is None else min(length, kind.window - 1 + step)
            extra = 1 if kind.window is not None and kept < length else 0
            taken += groups * (ceil(kept / tokens) + extra if kind.entry else 1)
        return taken

    def room(self, pool: int, length: int, step: int, allocation: Allocation) -> Room:
        """What a pool of `pool` bytes holds."""
        pages = max(0, pool) // (self.page_bytes * self.group_layers)
        sequences = pages / self.pages_of(length, step)
        counted = int(sequences * length) if allocation.counts_requests else pages // self.groups * self.tokens
        return Room(tokens=counted, sequences=sequences)


def unified(found: list[Kind], allocation: Allocation) -> Pages:
    """The pages that kinds of layers share."""
    growing = [kind for kind in found if kind.entry]
    state = max(kind.state for kind in found)
    entry = max((kind.entry for kind in growing), default=0)
    tokens = allocation.block_tokens
    if state and entry:
        unit = allocation.latent_block_tokens if any(kind.latent for kind in growing) else allocation.block_tokens
        tokens = max(tokens, ceil(state / entry / unit) * unit)
    page = max(tokens * entry, state)
    rarest, most = min(kind.layers for kind in found), max(kind.layers for kind in found)
    size = most if most < rarest * _LONGER_GROUPS else rarest
    placed = tuple((kind, ceil(kind.layers / size), page // kind.entry if kind.entry else 0) for kind in found)
    return Pages(page_bytes=page, group_layers=size, groups=sum(groups for _, groups, _ in placed),
                 tokens=placed[0][2], kinds=placed)


def token_bytes(found: list[Kind], allocation: Allocation) -> float:
    """Bytes that one token more takes in pools of their own: sliding layers have a share of the tokens."""
    share = 1.0 if allocation.window_share is None else allocation.window_share
    full = any(kind.entry and kind.window is None for kind in found)
    return sum(kind.layers * kind.entry * (share if kind.window is not None and full else 1.0) for kind in found)


def apart(found: list[Kind], pool: int, length: int, allocation: Allocation) -> Room:
    """What pools of their own hold."""
    states = any(kind.state for kind in found)
    usable = pool / (1 + allocation.state_share) if states and allocation.state_share else pool
    each = token_bytes(found, allocation)
    if not each:
        return Room(tokens=0, sequences=0.0)
    block = allocation.block_tokens
    tokens = int(max(0.0, usable) / each) // block * block
    return Room(tokens=tokens, sequences=tokens / (ceil(length / block) * block))


def room(found: list[Kind], pool: int, length: int, step: int, allocation: Allocation) -> Room:
    """What `pool` bytes on one rank hold of sequences of `length` tokens."""
    if allocation.unified_pages and len(found) > 1 and any(kind.entry for kind in found):
        return unified(found, allocation).room(pool, length, step, allocation)
    return apart(found, pool, length, allocation)


def allocated_per_token(found: list[Kind], allocation: Allocation) -> int:
    """Bytes that the engine allocates on one rank for one token more of a long sequence. With unified pages every layer
    of a group that grows takes whole pages, the padding layers of a group too."""
    if allocation.unified_pages and len(found) > 1 and any(kind.entry for kind in found):
        pages = unified(found, allocation)
        grows = [(groups, tokens) for kind, groups, tokens in pages.kinds if kind.entry and kind.window is None]
        return ceil(sum(groups * pages.group_layers * pages.page_bytes / tokens for groups, tokens in grows))
    return ceil(sum(kind.layers * kind.entry for kind in found if kind.window is None))
