"""Allocation: how a serving engine divides the memory of a device, and what it caches for a token."""

from __future__ import annotations

from typing import Literal

import msgspec

from .base import Noun


class Batch(Noun, frozen=True, kw_only=True):
    """What an engine takes in one step unless it is told, on devices of at least some memory."""

    above_bytes: int
    """Smallest memory of a device that these figures are for."""
    tokens: int
    """Prompt tokens of one step."""
    sequences: int
    """Sequences that are decoded together."""


class Padding(Noun, frozen=True, kw_only=True):
    """Multiples that the kernels of a scheme need, for routed experts."""

    hidden: int
    """Of the hidden size."""
    width: int
    """Of a rank's share of an expert's width."""


class Reserve(Noun, frozen=True, kw_only=True):
    """What an engine leaves free, when it works the share out itself: bytes, added up."""

    fixed: int = 0
    """Whatever is run."""
    per_token: float = 0.0
    """For each token of a step."""
    per_sequence: float = 0.0
    """For each sequence decoded together."""
    per_device: int = 0
    """For each device of a replica."""
    least: int = 0
    """The least that stays free on a large device, see `large_bytes`."""
    large_bytes: int = 0
    """Memory of a device from which `least` holds."""


class Rounding(Noun, frozen=True, kw_only=True):
    """How the allocator under an engine rounds what tensors ask for."""

    large_bytes: int
    """From this size on a tensor gets memory of its own."""
    step_bytes: int
    """Of which it asks the device for a multiple."""


class Between(Noun, frozen=True, kw_only=True):
    """Bytes that are known only between bounds."""

    least: int = 0
    """At least so many."""
    most: int = 0
    """At most so many."""

    def __add__(self, other: Between) -> Between:
        return Between(least=self.least + other.least, most=self.most + other.most)

    def __mul__(self, times: int) -> Between:
        return Between(least=self.least * times, most=self.most * times)


class Buffer(Noun, frozen=True, kw_only=True):
    """What a kernel of routed experts asks for when it first runs, beside the budget."""

    schemes: tuple[str, ...]
    """Schemes of the experts' weights that it is for."""
    archs: tuple[str, ...]
    """Architectures of devices that it is for."""
    tile: int
    """Tokens of one expert that it computes together, the largest that it may choose."""
    tuning: float = 0.0
    """What is allocated when its variants are tried, at most, as a multiple of the buffer; where replicas share
    experts."""


class Beside(Noun, frozen=True, kw_only=True):
    """What an engine takes of a device beside its budget: it has to fit in what the budget leaves."""

    process: Between = Between()
    """A process with its loaded kernels, on one device."""
    collectives: Between = Between()
    """Communicators that are open before the budget is counted, where a fabric of their own joins the devices."""
    bus_collectives: Between = Between()
    """The same, where only the bus of the machine joins them."""
    stages: Between = Between()
    """Those of pipeline stages, added to them."""
    graph: Between = Between()
    """One captured graph, for each layer."""
    graph_tokens: int = 0
    """Tokens of the largest captured graph: they are of 1, 2, 4 and every multiple of 8 tokens."""
    graph_coarse: int | None = None
    """Tokens from which they are of multiples of 16 only; None: of 8 throughout."""
    graph_sequences: int = 1
    """Tokens of the largest captured graph for each sequence decoded together, if that is less."""
    graph_passes: int = 0
    """How often a size is captured: for mixed steps, and once more for steps that decode only where it has at most a
    token for each sequence."""
    graphs_in_budget: bool = False
    """Whether the budget pays for the graphs, by an estimate before they are captured."""
    buffers: tuple[Buffer, ...] = ()
    """Of kernels of routed experts; the first that fits scheme and architecture counts."""


class Allocation(Noun, frozen=True, kw_only=True):
    """The memory rules of one engine from one version on. `sources` says where each is from."""

    since: str
    """First version that works this way; 0: the first known."""
    date: str
    """Day of that version, as 2025-03-18, for what is only known by its date."""
    budget: Literal["total", "free", "left"]
    """What the share is a share of: all memory of the device; what is free before weights are loaded; what is left when
    weights and the activations of a step have been taken."""
    utilization: float | Literal["reserve"]
    """The share, unless it is stated; reserve: what `reserve` leaves."""
    reserve: Reserve = Reserve()
    """What is left free when no share is stated."""
    driver_bytes: int = 0
    """Memory that the vendor's tool counts and that is no part of the budget: what the driver keeps, and for a share of
    what is free a process without any tensor too."""
    library_bytes: int = 0
    """What libraries take at the first step: workspaces and loaded kernels."""
    collective_bytes: int = 0
    """Buffers of collectives that the budget pays for, when a replica has several devices that a fabric of their own
    joins."""
    bus_collective_bytes: int = 0
    """The same, where only the bus of the machine joins them."""
    beside: Beside | None = None
    """What is taken beside the budget; None: it is not known."""
    rounding: Rounding | None = None
    """How tensors are rounded; None: they are not, or it is not known."""
    logit_bytes: int = 0
    """For each sequence and entry of the vocabulary at the peak of sampling."""
    profiled: bool = False
    """Whether the peak of a full step is measured and subtracted from the budget before the cache is allocated."""
    every_row: bool = False
    """Whether a rank's kernels hold a row for each token and expert of a step, wherever the expert is. It is so for a
    single replica; between replicas tokens are exchanged, and each rank has what the router sends to it."""
    whole_prompts: bool = False
    """Whether a step takes whole prompts, up to the longest sequence, instead of pieces of them."""
    piece_above: int | None = None
    """Length of sequences above which prompts are cut into pieces all the same."""
    batches: tuple[Batch, ...] = ()
    """Steps by memory of the device, largest first."""
    block_tokens: int = 1
    """Tokens of one block of the cache."""
    latent_block_tokens: int = 1
    """Multiple of tokens of a block of a latent cache that is sized to match the state of linear layers."""
    checks_length: bool = False
    """Whether it refuses to start when one sequence of full length does not fit in the cache."""
    counts_requests: bool = False
    """Whether the tokens it reports are sequences of full length that fit, times their length."""
    unified_pages: bool = False
    """Whether pages of all layers are alike, and layers of different kinds share the pool in groups of equal size."""
    bounded_windows: bool = True
    """Whether a sliding layer keeps its window only."""
    bounded_chunks: bool = True
    """The same of layers whose attention stays inside chunks; it keeps everything where windows are not bounded."""
    window_share: float | None = None
    """Tokens that sliding layers get for each token of full layers, in pools of their own; None: no such pools."""
    state_share: float | None = None
    """Bytes for the state of linear layers for each byte of cache, in a pool of its own; None: no such pool."""
    latent_cache: bool = True
    """Whether compressed keys and values are cached as they are; otherwise every head's keys and values are."""
    materialized_head: int = 0
    """Width that heads are padded to where a latent cache is not kept compressed."""
    absorbs: bool = False
    """Whether the up projections of a latent attention are kept once more, in 16 bits, for decoding."""
    rope_table: bool = False
    """Whether sines and cosines of all positions are held."""
    entry_bytes: dict[str, int] = msgspec.field(default_factory=dict)
    """Bytes of a latent cache's entry for a token and layer, by name of the cache's dtype, where they are not width
    times size of a value."""
    padding: dict[str, Padding] = msgspec.field(default_factory=dict)
    """What kernels pad, by scheme, or by `scheme@arch` for one architecture of devices."""
    indexer_bytes: int = 0
    """Bytes that a layer with an indexer stores of a token for it."""
    indexed_dtype: str = ""
    """The cache's dtype where layers have an indexer and none, or fp8, is asked for; empty: as asked."""
    longer_stages: Literal["first", "before_last", "last"] = "first"
    """Pipeline stages that get a layer more where they do not come out even."""
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    """For each fact: where it is from."""

    def batch(self, memory_bytes: int) -> Batch | None:
        """The step on a device of that much memory; None: not known."""
        return next((batch for batch in self.batches if memory_bytes >= batch.above_bytes), None)
