"""What a model is, by its config and its weights: kinds of layers, families of weights, sizes."""

from __future__ import annotations

import msgspec

from .base import Noun


class Attention(Noun, frozen=True, kw_only=True):
    """One kind of token mixing that layers of the model use."""

    kind: str
    """full, sliding, latent (MLA), linear (a constant state) or sparse."""
    heads: int
    """Query heads; for linear attention the heads of the state."""
    kv_heads: int
    """Key/value heads; 1 for a latent cache."""
    head_dim: int
    """Width of a query/key head; for latent attention nope + rope dims."""
    v_head_dim: int
    """Width of a value head."""
    window: int | None = None
    """Tokens that a sliding layer sees; None: all."""
    chunked: bool = False
    """Whether `window` is the length of chunks that do not see each other, so that a query sees at most so many."""
    q_rank: int | None = None
    """Width of the compressed query (latent attention); None: queries are not compressed."""
    kv_rank: int | None = None
    """Width of the compressed key/value that is cached (latent attention)."""
    rope_dim: int | None = None
    """Width of the shared positional key that is cached beside `kv_rank` (latent attention)."""
    conv_kernel: int | None = None
    """Taps of the short convolution in front of a linear attention."""
    times: int = 1
    """How often a layer does it, each time with weights and a cache of its own."""
    merged: int = 1
    """Tokens that share one entry of a cache that is compressed along the sequence."""
    near: int | None = None
    """Last tokens that a query sees one by one beside such entries; None: none, or the config does not say."""
    output_groups: int = 0
    """Groups of heads with an output projection of their own; 0: one projection for all."""
    index_heads: int = 0
    """Heads of the indexer that chooses what a query looks at; 0: it looks at all."""
    index_head_dim: int = 0
    """Width of such a head."""
    index_top_k: int = 0
    """Entries that the indexer chooses for a query."""

    @property
    def is_entry_head(self) -> bool:
        """Whether what a latent attention caches is key and value as it is, so that no matrix expands it."""
        return self.kind == "latent" and self.head_dim == self.v_head_dim == (self.kv_rank or 0) + (self.rope_dim or 0)


class Rope(Noun, frozen=True, kw_only=True):
    """How positions rotate queries and keys in one kind of layer."""

    base: float | None
    """Base of the frequencies (theta); None: the config states none."""
    base_key: str
    """Dotted config key of the base; empty: none is stated."""
    scaling: str = "default"
    """How the frequencies are stretched: default (not at all), linear, dynamic, yarn, longrope ..."""
    factor: float | None = None
    """How many times as long contexts get; None: the kind of scaling has no one factor, or does not state it."""
    original_positions: int | None = None
    """Context that the model had before it was stretched; None: not stated."""
    table: str = ""
    """Dotted key of the table that states the scaling; empty: there is none."""
    share: float | None = None
    """Share of a head that is rotated; None: not stated."""


class FeedForward(Noun, frozen=True, kw_only=True):
    """One kind of feed-forward block that layers of the model use."""

    kind: str
    """dense or experts."""
    width: int
    """Inner width of the dense block or of one routed expert."""
    input_width: int
    """Width that the (routed) projection reads: the hidden size, or a narrower latent one."""
    experts: int = 0
    """Routed experts; 0: dense."""
    top_k: int = 0
    """Experts that the router chooses for a token; `visited` of them compute anything."""
    zero_experts: int = 0
    """What the router ranks beside the experts and what has no weights: a token that it sends there is passed on as it
    is, or dropped."""
    shared_experts: int = 0
    """Experts that every token visits."""
    shared_width: int = 0
    """Inner width of all shared experts together."""

    @property
    def choices(self) -> int:
        """What the router chooses from."""
        return self.experts + self.zero_experts

    @property
    def visited(self) -> float:
        """Routed experts with weights that a token visits, on average, of a balanced router."""
        return self.top_k * self.experts / self.choices if self.zero_experts else float(self.top_k)


class Layer(Noun, frozen=True, kw_only=True):
    """One decoder layer: which kinds it is made of."""

    attention: str
    """Key into `ModelSpec.attentions`: a kind, `/` and the tokens that share an entry where layers of it differ."""
    feed_forward: str
    """Key into `ModelSpec.feed_forwards`."""


class Tower(Noun, frozen=True, kw_only=True):
    """What turns other inputs into embeddings: sizes that tensor parallelism can cut, as the config states them."""

    heads: int
    """Attention heads; 0: not stated."""
    heads_key: str
    """Dotted config key of the heads."""
    width: int
    """Inner width of the feed-forward blocks; 0: not stated."""
    width_key: str
    """Dotted config key of the width."""


class WeightFamily(Noun, frozen=True, kw_only=True):
    """Tensors that play one role: one pattern, one shape, one dtype."""

    role: str
    """Name from the vocabulary, such as attention.q, experts.up, router, norm, vision; `other` when not recognised.
    What begins with `unused.` is stored, and the model does not have it: an output head beside a tied embedding."""
    pattern: str
    """As in `TensorGroup`."""
    shape: tuple[int, ...]
    """Stored shape of one tensor."""
    dtype: str
    """Stored dtype."""
    scheme: str
    """Quantisation of the weight: bf16, f16, f32, fp8, mxfp4, nvfp4, int4, int8 ...; of a scale: that of its weight."""
    split: str
    """What tensor parallelism cuts: heads, kv_heads, width, shared_width, vocab, experts; or `replicated`."""
    axis: int | None
    """Axis of the stored shape that is cut; None: replicated."""
    count: int
    """Tensors of the family."""
    layers: tuple[int, ...]
    """Layers that have one, sorted, each once; empty: not in a layer."""
    experts: int
    """Experts for each layer; 0: not a routed expert."""
    parameters: int
    """Logical parameters of all its tensors together: packed values counted one by one, scales and buffers not."""
    stored_bytes: int
    """Bytes of all its tensors together."""
    block: int = 1
    """Logical values along `axis` that share a scale, so that a cut must not separate them; 1: cut anywhere."""


class ModelSpec(Noun, frozen=True, kw_only=True):
    """What the files say about the model. `sources` says where each value was read."""

    name: str
    """Short name of the release, for people."""
    architectures: tuple[str, ...]
    """Class names that the config states."""
    model_type: str
    """The config's model_type; empty if it has none."""
    hidden_size: int
    """Width of the residual stream."""
    vocab_size: int
    """Rows of the embedding."""
    max_positions: int | None
    """Longest context that the config states, in tokens."""
    tied_embeddings: bool
    """Whether the output head is the embedding matrix."""
    layers: tuple[Layer, ...]
    """Decoder layers in order, without multi-token-prediction layers."""
    attentions: dict[str, Attention]
    """The kinds of attention, by the key that layers use."""
    feed_forwards: dict[str, FeedForward]
    """The kinds of feed-forward block, by the key that layers use."""
    ropes: dict[str, Rope] = msgspec.field(default_factory=dict)
    """Rotary positions, by the key of `attentions`; `compressed` for those of a compressed cache. A kind that is
    absent rotates nothing, or the config does not say."""
    towers: tuple[Tower, ...] = ()
    """Vision towers that the config describes."""
    families: tuple[WeightFamily, ...]
    """All tensors, by role."""
    mtp_layers: int
    """Multi-token-prediction layers in the files."""
    parameters: int
    """Logical parameters of the whole release, without unused tensors."""
    parameters_text: int
    """Those of the language model alone: without vision or audio towers, with MTP."""
    parameters_active: dict[str, int]
    """Parameters that one token uses, in three definitions: `all` (with input embedding and head), `no_embedding`
    (without the input embedding) and `no_embedding_no_head`. Towers and MTP are left out of each."""
    checkpoint_bytes: int
    """Bytes of all tensors."""
    dtype: str
    """Scheme that most of the unquantised weights have, such as bf16."""
    quantization: dict[str, object] | None = None
    """The config's statement of quantisation as it is, or that of a file beside it; None: there is none."""
    provenance: str = ""
    """What the release says about how its weights were made, such as a conversion from another format."""
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    """For each value: the config key (`config.json: text_config.hidden_size`), tensor header or default it is from."""
    unknowns: tuple[str, ...] = ()
    """Config keys and tensor patterns that nothing here understands."""
    not_finite: tuple[tuple[tuple[str | int, ...], str], ...] = ()
    """(keys and indices, text such as `nan`) of numbers of the config that are not finite: JSON has no such values, so
    that `Release.config` holds null there once it was written and read again."""

    @property
    def mixes_experts(self) -> bool:
        """Whether a token uses only some of the parameters."""
        return any(block.experts for block in self.feed_forwards.values())

    def attention_layers(self) -> dict[str, int]:
        """Number of layers of each attention kind."""
        kinds: dict[str, int] = {}
        for layer in self.layers:
            kind = self.attentions[layer.attention].kind
            kinds[kind] = kinds.get(kind, 0) + 1
        return kinds
