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
from functools import partial
from math import ceil
from typing import NamedTuple

import msgspec
import numpy as np

from dayzero.arrays import Value, choose
from dayzero.data.allocation import allocation
from dayzero.ops import cache_bytes_per_token
from dayzero.schema import Attention, Device, Engine, Layout, ModelSpec, Workload
from dayzero.schema.allocation import Allocation

from .many import Layouts, Ranges, shared
from .sequence import kept_bytes, layer_state_bytes, prefill_tokens, value_bytes

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


def entry_bytes(attention: Attention, layout: Layout, rules: Allocation, model: ModelSpec, dtype: str) -> int:
    """Bytes that the engine stores for one token of one layer on one rank. `dtype`: auto, fp8 or a name of the engine's
    own (`Allocation.entry_bytes`)."""
    item = value_bytes(model) if dtype in ("", "auto") else NARROW
    if attention.kind == "latent":
        if not rules.latent_cache:
            return ceil(attention.heads / layout.attention_degree) * 2 * rules.materialized_head * item
        entry = rules.entry_bytes.get(dtype)
        return attention.times * ceil(entry / attention.merged) if entry else cache_bytes_per_token(attention, item)
    whole = cache_bytes_per_token(attention, item)
    degree = max(1, layout.attention_degree // layout.cp)
    return whole // attention.kv_heads * ceil(attention.kv_heads / degree) if whole else 0


class Composition(NamedTuple):
    """What the layers of a stage are."""

    kinds: Counter[tuple[str, bool]]
    """Layers by kind of attention and whether they have an indexer."""
    attentions: Counter[str]
    """Layers by kind of attention alone."""
    indexed: bool
    """Whether any layer of the model has one."""


def composition(model: ModelSpec, layers: range) -> Composition:
    """Of a stage."""
    indexed = {index for family in model.families if family.role.startswith("indexer") for index in family.layers}
    names = [model.layers[index].attention for index in layers]
    found = Counter((name, index in indexed) for name, index in zip(names, layers, strict=True))
    return Composition(found, Counter(names), bool(indexed))


def kinds(model: ModelSpec, layout: Layout, rules: Allocation, layers: range, dtype: str) -> list[Kind]:
    """The kinds of layers of a stage, those that grow with the sequence first."""
    return _kinds(model, layout, rules, composition(model, layers), dtype)


def _kinds(model: ModelSpec, layout: Layout, rules: Allocation, layers: Composition, dtype: str) -> list[Kind]:
    counted: Counter[Kind] = Counter()
    if layers.indexed and dtype in ("", "auto", "fp8"):
        dtype = rules.indexed_dtype or dtype
    for (name, has_indexer), count in layers.kinds.items():
        attention = model.attentions[name]
        bounded = rules.bounded_windows and (rules.bounded_chunks or not attention.chunked)
        window = attention.window if bounded else None
        entry = entry_bytes(attention, layout, rules, model, dtype) + (
            ceil(rules.indexer_bytes / attention.merged) if has_indexer else 0)
        counted[Kind(layers=0, entry=entry,
                     state=layer_state_bytes(attention, layout), window=window,
                     latent=attention.kind == "latent" and rules.latent_cache)] += count
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

    def room(self, pool: int, length: int, step: int, rules: Allocation) -> Room:
        """What a pool of `pool` bytes holds."""
        pages = max(0, pool) // (self.page_bytes * self.group_layers)
        sequences = pages / self.pages_of(length, step)
        counted = int(sequences * length) if rules.counts_requests else pages // self.groups * self.tokens
        return Room(tokens=counted, sequences=sequences)


def unified(found: list[Kind], rules: Allocation) -> Pages:
    """The pages that kinds of layers share."""
    growing = [kind for kind in found if kind.entry]
    state = max(kind.state for kind in found)
    entry = max((kind.entry for kind in growing), default=0)
    tokens = rules.block_tokens
    if state and entry:
        unit = rules.latent_block_tokens if any(kind.latent for kind in growing) else rules.block_tokens
        tokens = max(tokens, ceil(state / entry / unit) * unit)
    page = max(tokens * entry, state)
    rarest, most = min(kind.layers for kind in found), max(kind.layers for kind in found)
    size = most if most < rarest * _LONGER_GROUPS else rarest
    placed = tuple((kind, ceil(kind.layers / size), page // kind.entry if kind.entry else 0) for kind in found)
    return Pages(page_bytes=page, group_layers=size, groups=sum(groups for _, groups, _ in placed),
                 tokens=placed[0][2], kinds=placed)


def token_bytes(found: list[Kind], rules: Allocation) -> float:
    """Bytes that one token more takes in pools of their own: sliding layers have a share of the tokens."""
    share = 1.0 if rules.window_share is None else rules.window_share
    full = any(kind.entry and kind.window is None for kind in found)
    return sum(kind.layers * kind.entry * (share if kind.window is not None and full else 1.0) for kind in found)


def apart(found: list[Kind], pool: int, length: int, rules: Allocation) -> Room:
    """What pools of their own hold."""
    states = any(kind.state for kind in found)
    usable = pool / (1 + rules.state_share) if states and rules.state_share else pool
    each = token_bytes(found, rules)
    if not each:
        return Room(tokens=0, sequences=0.0)
    block = rules.block_tokens
    tokens = int(max(0.0, usable) / each) // block * block
    return Room(tokens=tokens, sequences=tokens / (ceil(length / block) * block))


def room(found: list[Kind], pool: int, length: int, step: int, rules: Allocation) -> Room:
    """What `pool` bytes on one rank hold of sequences of `length` tokens."""
    pages = pages_of(found, rules)
    return pages.room(pool, length, step, rules) if pages else apart(found, pool, length, rules)


def pages_of(found: list[Kind], rules: Allocation) -> Pages | None:
    """The pages that the kinds of layers share; None: the engine has no unified pages, or there is one kind only."""
    shared = rules.unified_pages and len(found) > 1 and any(kind.entry for kind in found)
    return unified(found, rules) if shared else None


def allocated_per_token(model: ModelSpec, rules: Allocation) -> int:
    """Bytes that the engine allocates for one token of a long sequence: whole model, one copy. With unified pages the
    pool has a page of every group for each page of tokens, whatever a group's layers keep."""
    found = kinds(model, Layout(), rules, range(len(model.layers)), "auto")
    pages = pages_of(found, rules)
    if pages is None:
        return sum(kind.layers * kind.entry for kind in found if kind.window is None)
    return ceil(pages.groups * pages.group_layers * pages.page_bytes / pages.tokens)


_PLAIN = Allocation(since="0", date="", budget="total", utilization=0.9, block_tokens=16)
"""An engine of which nothing is known but what the target states."""


def allocation_of(engine: Engine) -> Allocation | None:
    """How the target's engine divides memory: its rules, with what the target states; None: nothing is known."""
    known, stated = allocation(engine.name, engine.version), engine.facts.unified_pages
    if stated is None:
        return known
    return msgspec.structs.replace(known or _PLAIN, unified_pages=stated)


def allocated_sequence(model: ModelSpec, layout: Layout | Layouts, layers: range | Ranges, workload: Workload,
                       rules: Allocation | None) -> tuple[Value, Value]:
    """(cache, state) bytes on one rank of the stage that holds `layers`, for one sequence of full length: whole
    pages where the engine has unified pages (what they take beyond the states is cache), else whole blocks of what it
    stores for a token; of an engine of which nothing is known the need."""
    if isinstance(layout, Layouts):
        both = np.zeros((2, len(layout)))
        parts = layers if isinstance(layers, Ranges) else Ranges((layers,), np.zeros(len(layout), dtype=np.int64))
        tokens = np.broadcast_to(_step(model, workload, layout), len(layout))
        for number, one in enumerate(parts.distinct):
            for step in np.unique(tokens[parts.which == number]):
                rows = np.flatnonzero((parts.which == number) & (tokens == step))
                held = shared(partial(_allocated, model, composition(model, one), workload.length, int(step), rules),
                              layout.take(rows))
                both[:, rows] = held.column(lambda pair: pair[0]), held.column(lambda pair: pair[1])
        return both[0], both[1]
    if isinstance(layers, Ranges):
        raise TypeError("many stages of one layout")
    return _allocated(model, composition(model, layers), workload.length, _step(model, workload, layout), rules, layout)


def _step(model: ModelSpec, workload: Workload, layout: Layout | Layouts) -> Value:
    """Prompt tokens of one step, where layers with a window keep some; else 0."""
    windows = any(attention.window is not None for attention in model.attentions.values())
    return prefill_tokens(workload, layout) if windows else 0


def _allocated(model: ModelSpec, layers: Composition, length: int, step: int, rules: Allocation | None, layout: Layout
               ) -> tuple[int, int]:
    """`allocated_sequence` of one layout, for sequences of `length` tokens and steps of `step`."""
    cache, state = kept_bytes(model, layout, layers.attentions, length)
    found = _kinds(model, layout, rules, layers, "auto") if rules else []
    if not rules or not found:
        return cache, state
    pages, here = pages_of(found, rules), -(-length // layout.cp)
    if pages is None:
        return sum(kind.layers * kind.entry * _blocks(kind, here, rules) for kind in found), state
    taken = pages.pages_of(here, step) * pages.page_bytes * pages.group_layers
    return max(cache, taken - state), state


def _blocks(kind: Kind, length: int, rules: Allocation) -> int:
    """Tokens of the blocks that a sequence takes in a layer."""
    kept = length if kind.window is None else min(length, kind.window)
    return ceil(kept / rules.block_tokens) * rules.block_tokens


def collective_bytes(layout: Layout | Layouts, rules: Allocation, device: Device) -> Value:
    """Buffers of collectives on one rank."""
    fabric = any(link.devices > 1 for link in device.links)
    return choose(layout.world_size > 1, rules.collective_bytes if fabric else rules.bus_collective_bytes, 0)


def reserve_bytes(rules: Allocation | None) -> int:
    """What the engine takes of a device whatever it runs: libraries, and where its budget is what is free, the driver's
    part."""
    if rules is None:
        return 0
    driver = 0 if rules.budget == "total" else rules.driver_bytes
    return rules.library_bytes + driver
