"""A plain decoder from its sizes alone, for models that are only known by hidden size, layers and heads."""

from __future__ import annotations

from dayzero.schema import Attention, FeedForward, Layer, ModelSpec, WeightFamily

VOCABULARY = 51200
"""Rows of the embedding where nothing says how many: the widely used 50,257 byte pairs, padded so that up to 8 ranks
share them in rows of 128."""


def plain_decoder(name: str, *, hidden: int, layers: int, heads: int, vocab: int = VOCABULARY) -> ModelSpec:
    """Full attention with one projection for queries, keys and values, a block of four times the hidden size that is
    not gated, and a tied embedding."""
    width, every = 4 * hidden, tuple(range(layers))
    sizes = (("attention.qkv", (3 * hidden, hidden), "heads", 0), ("attention.o", (hidden, hidden), "heads", 1),
             ("mlp.up", (width, hidden), "width", 0), ("mlp.down", (hidden, width), "width", 1),
             ("norm", (hidden,), "replicated", None), ("norm", (hidden,), "replicated", None))
    families = [_family(f"{role}.{{L}}", role, shape, split, axis, every) for role, shape, split, axis in sizes]
    families += [_family("embedding", "embedding", (vocab, hidden), "vocab", 0, ()),
                 _family("norm.final", "norm.final", (hidden,), "replicated", None, ())]
    count = sum(family.parameters for family in families)
    attention = Attention(kind="full", heads=heads, kv_heads=heads, head_dim=hidden // heads,
                          v_head_dim=hidden // heads)
    return ModelSpec(
        name=name, architectures=(), model_type="", hidden_size=hidden, vocab_size=vocab, max_positions=None,
        tied_embeddings=True, layers=(Layer(attention="full", feed_forward="dense"),) * layers,
        attentions={"full": attention},
        feed_forwards={"dense": FeedForward(kind="dense", width=width, input_width=hidden)},
        families=tuple(families), mtp_layers=0, parameters=count, parameters_text=count, parameters_active={},
        checkpoint_bytes=2 * count, dtype="bf16")


def _family(pattern: str, role: str, shape: tuple[int, ...], split: str, axis: int | None, layers: tuple[int, ...]
            ) -> WeightFamily:
    tensors = len(layers) or 1
    count = tensors * (shape[0] * shape[1] if len(shape) > 1 else shape[0])
    return WeightFamily(pattern=pattern, role=role, shape=shape, dtype="BF16", scheme="bf16", split=split, axis=axis,
                        count=tensors, layers=layers, experts=0, parameters=count, stored_bytes=2 * count)
