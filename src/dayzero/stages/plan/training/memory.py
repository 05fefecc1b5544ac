"""What one device needs while training, by cause, for each pipeline stage.

Activations follow arXiv:2205.05198 and count what each operator keeps for backward; for its plain decoder that gives
the table of that paper: s b h (34 + 5 a s / h) bytes a layer, 10 + 24 / t with tensor parallel, all of it / t with
sequence parallel, without the 5 a s / h with selective recomputation, and 2 s b h with full. Fused attention keeps no
scores, and today's models have no dropout; what products of 8 or 4 bits read is kept cast.
"""

from __future__ import annotations

import msgspec

from dayzero.schema import Attention, Cluster, FeedForward, Layer, ModelSpec

from .load import BITS, ITEM
from .setup import Setup
from .step import parameters, shards, stages_of

FP32 = 4
"""Bytes of a value of 32 bits."""
LOGIT_BYTES = 10
"""Of one logit: in 16 bits, in 32 bits for the loss, and its gradient in 32 bits."""
CAUSES = ("weights", "gradients", "optimiser", "activations", "logits", "communication", "process")
"""Keys of what `peak_bytes` gives."""


def mixing_bytes(attention: Attention, hidden: int, setup: Setup) -> float:
    """Bytes kept for backward for each token of a micro-batch, of a mixing block with its norm, on one rank: inputs of
    the norm and of the projections, queries, keys and values, the output, and scores that are written."""
    if not attention.heads:
        return 0.0
    degree, again = setup.layout.attention_degree, setup.recompute == "selective"
    keys = attention.heads if attention.kind == "latent" else attention.kv_heads
    widths = attention.heads * attention.head_dim + keys * (attention.head_dim + attention.v_head_dim)
    output = attention.heads * attention.v_head_dim * product_bytes(setup)
    core = 5 * attention.heads * setup.sequence / degree if not (setup.fused_attention or again) else 0.0
    return outer_bytes(hidden, setup) + (ITEM * widths + output) / degree + core


def block_bytes(block: FeedForward, hidden: int, setup: Setup, gated: bool) -> float:
    """Bytes kept for backward for each token of a micro-batch, of a feed-forward block with its norm, on one rank:
    inputs, what goes into the activation and what comes out of it. Of routed experts the rows that a balanced router
    sends to the rank."""
    if not block.width:
        return 0.0
    tp, dropped = setup.layout.tp, setup.fused_attention and setup.recompute == "selective"
    inner = ITEM * (2 if gated else 1) + (0 if dropped else product_bytes(setup))
    if not block.experts:
        return outer_bytes(hidden, setup) + inner * block.width / tp
    routed = block.visited / tp * (product_bytes(setup) * block.input_width + inner * block.width)
    return outer_bytes(hidden, setup) + routed + inner * block.shared_width / tp


def outer_bytes(hidden: int, setup: Setup) -> float:
    """Of a block's input, its norm, and with dropout the mask behind the block."""
    if setup.fused_attention:
        kept = ITEM * hidden + (0 if setup.recompute == "selective" else product_bytes(setup) * hidden)
    else:
        kept = ITEM * 2 * hidden + hidden
    return kept / setup.spread


def product_bytes(setup: Setup) -> int:
    """Of a value that is kept because a product reads it: those of fewer bits keep it cast."""
    return 1 if setup.scheme in BITS else ITEM


def layer_bytes(model: ModelSpec, index: int, setup: Setup) -> float:
    """Bytes of activations that one rank keeps of one layer for one micro-batch."""
    layer = model.layers[index]
    attention, block = model.attentions[layer.attention], model.feed_forwards[layer.feed_forward]
    if setup.recompute == "full":
        return ITEM * setup.rows * model.hidden_size / setup.spread
    gated = any(family.role.endswith((".gate", ".gate_up")) and index in family.layers for family in model.families)
    return setup.rows * (mixing_bytes(attention, model.hidden_size, setup)
                         + block_bytes(block, model.hidden_size, setup, gated))


def in_flight(setup: Setup, stage: int) -> float:
    """Micro-batches whose activations a stage (from 0) keeps at the peak: of 1F1B pp - stage; interleaved the first
    stage keeps 1 + (pp - 1) / (pp virtual) times pp; never more than there are."""
    pp = setup.layout.pp
    kept = float(pp - stage)
    if setup.virtual > 1:
        kept += (pp - 1) / setup.virtual
    return min(kept, float(setup.micro_batches))


def peak_bytes(model: ModelSpec, setup: Setup, cluster: Cluster, drafts: int = 0,
               stages: tuple[tuple[int, int], ...] | None = None) -> tuple[dict[str, int], ...]:
    """Bytes by cause on one device of each pipeline stage."""
    bounds = stages or stages_of(model, setup, cluster, drafts)
    each = {layer: layer_bytes(model, index, setup)
            for layer, index in {layer: index for index, layer in enumerate(model.layers)}.items()}
    return tuple(_stage(model, setup, cluster, number, range(*one), each) for number, one in enumerate(bounds))


def _stage(model: ModelSpec, setup: Setup, cluster: Cluster, number: int, layers: range, each: dict[Layer, float]
           ) -> dict[str, int]:
    keeps, parts = parameters(model, setup, layers), shards(setup)
    own = sum(count / part for count, part in zip(keeps, parts, strict=True))
    trained = 0.0 if setup.frozen else 1.0
    last = layers.stop == len(model.layers)
    kept = sum(each[model.layers[index]] for index in layers) * in_flight(setup, number)
    if setup.recompute == "full":  # one layer at a time is computed again, with all that it keeps
        whole = msgspec.structs.replace(setup, recompute="none")
        kept += max(layer_bytes(model, index, whole) for index in {layer: index for index, layer in
                                                                   zip(layers, model.layers[layers.start:layers.stop],
                                                                       strict=True)}.values())
    rows = setup.rows
    largest = max(keeps.total / max(1, len(layers)) * 2 * ITEM, ITEM * rows * model.hidden_size)
    return {
        "weights": int(ITEM * (own if setup.zero == 3 else keeps.total)),
        "gradients": int(trained * setup.gradient_bytes * (own if setup.zero >= 2 else keeps.total)),
        "optimiser": int(trained * 3 * FP32 * (own if setup.zero >= 1 else keeps.total)),
        "activations": int(kept),
        "logits": int(rows * model.vocab_size / setup.layout.tp * LOGIT_BYTES) if last else 0,
        "communication": int(largest if setup.layout.world_size > 1 else 0),
        "process": cluster.device.process_bytes,
    }

