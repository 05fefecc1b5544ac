"""What one device needs while training, by cause, for each pipeline stage; of one way to train or of many.

Activations follow arXiv:2205.05198 and count what each operator keeps for backward; for its plain decoder that gives
the table of that paper: s b h (34 + 5 a s / h) bytes a layer, 10 + 24 / t with tensor parallel, all of it / t with
sequence parallel, without the 5 a s / h with selective recomputation, and 2 s b h with full. Fused attention keeps no
scores, and today's models have no dropout; what products of 8 or 4 bits read is kept cast.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dayzero.arrays import Value, choose, largest, smallest
from dayzero.schema import Attention, Cluster, FeedForward, Layout, ModelSpec, Target

from .dealing import Chunks
from .kinds import Kinds
from .load import BITS, ITEM
from .setup import FULL, NONE, PRODUCTS, RECOMPUTE, Setup, Ways
from .states import Held, holdings, most, own
from .step import stages_of

FP32 = 4
"""Bytes of a value of 32 bits."""
FRAGMENTS = 0.05
"""Of what is allocated and freed within a step: what an allocator loses between blocks of different sizes."""
AHEAD = 2
"""Layers whose weights or states are on the device at a time, of those that are kept elsewhere: the one that computes
and the next one."""
LEVELS = {"weights": 3, "gradients": 2, "optimiser": 1}
"""Places in OFFLOAD from which on these lie in the host's memory."""
CAUSES = ("weights", "gradients", "optimiser", "activations", "logits", "communication", "fragmentation", "process")
"""Keys of what `peak_bytes` gives."""


class Kept(NamedTuple):
    """Bytes that one rank keeps for one micro-batch."""

    layers: Value
    """By what is recomputed, in each kind of layer. Shape [RECOMPUTE, kinds] or [RECOMPUTE, kinds, ways]."""
    logits: Value
    """Of the logits."""


def mixing_bytes(attention: Attention, hidden: int, setup: Setup | Ways, redo: int) -> Value:
    """Bytes kept for backward for each token of a micro-batch, of a mixing block with its norm, on one rank: inputs of
    the norm and of the projections, queries, keys and values, the output, and scores that are written."""
    if not attention.heads:
        return 0.0
    degree = setup.layout.attention_degree
    keys = attention.heads if attention.kind == "latent" else attention.kv_heads
    widths = attention.heads * attention.head_dim + keys * (attention.head_dim + attention.v_head_dim)
    output = attention.heads * attention.v_head_dim * product_bytes(setup)
    kept = widths / 2 if redo == PRODUCTS else widths
    scores = not setup.fused_attention and redo == NONE
    core = 5 * attention.heads * setup.sequence / degree if scores else 0.0
    return outer_bytes(hidden, setup, redo) + (ITEM * kept + output) / degree + core


def block_bytes(block: FeedForward, hidden: int, setup: Setup | Ways, gated: bool, redo: int) -> Value:
    """Bytes kept for backward for each token of a micro-batch, of a feed-forward block with its norm, on one rank:
    inputs, what goes into the activation and what comes out of it. Of routed experts the rows that a balanced router
    sends to the rank."""
    if not block.width:
        return 0.0
    tp, dropped = setup.layout.tp, setup.fused_attention and redo != NONE
    inner = (ITEM * (2 if gated else 1) + (0 if dropped else product_bytes(setup))) / (2 if redo == PRODUCTS else 1)
    if not block.experts:
        return outer_bytes(hidden, setup, redo) + inner * block.width / tp
    routed = block.visited / tp * (product_bytes(setup) * block.input_width + inner * block.width)
    return outer_bytes(hidden, setup, redo) + routed + inner * block.shared_width / tp


def outer_bytes(hidden: int, setup: Setup | Ways, redo: int) -> Value:
    """Of a block's input, its norm, and with dropout the mask behind the block."""
    if setup.fused_attention:
        kept = ITEM * hidden + (0 if redo != NONE else product_bytes(setup) * hidden)
    else:
        kept = ITEM * 2 * hidden + hidden
    return kept / setup.spread


def product_bytes(setup: Setup | Ways) -> int:
    """Of a value that is kept because a product reads it: those of fewer bits keep it cast."""
    return 1 if setup.scheme in BITS else ITEM


def layer_bytes(model: ModelSpec, index: int, setup: Setup | Ways, redo: int) -> Value:
    """Bytes of activations that one rank keeps of one layer for one micro-batch, with that recomputed."""
    layer = model.layers[index]
    attention, block = model.attentions[layer.attention], model.feed_forwards[layer.feed_forward]
    if redo == FULL:
        return ITEM * setup.rows * model.hidden_size / setup.spread
    gated = any(family.role.endswith((".gate", ".gate_up")) and index in family.layers for family in model.families)
    return setup.rows * (mixing_bytes(attention, model.hidden_size, setup, redo)
                         + block_bytes(block, model.hidden_size, setup, gated, redo))


def kept(model: ModelSpec, setup: Setup | Ways, kinds: Kinds) -> Kept:
    """What one rank keeps for one micro-batch."""
    layers = np.stack([np.stack([np.asarray(layer_bytes(model, index, setup, redo), float) + 0.0 * setup.rows
                                 for index in kinds.examples]) for redo in range(len(RECOMPUTE))])
    return Kept(layers, setup.rows * model.vocab_size / setup.layout.tp * setup.logit_bytes)


def in_flight(setup: Setup | Ways, stage: Value) -> Value:
    """Micro-batches whose activations a stage (from 0) keeps at the peak, never more than there are. Of 1F1B
    pp - stage; interleaved 2 (pp - stage - 1) + (virtual - 1) pp + 1 chunks (arXiv:2104.04473); of a zero-bubble
    schedule, which keeps them for the weights' gradients, pp (arXiv:2401.10241, ZB-H1)."""
    pp, virtual = setup.layout.pp, setup.virtual
    chunks = (2 * (pp - stage - 1) + (virtual - 1) * pp + 1) / virtual
    counted = choose(setup.zero_bubble, pp * 1.0, choose(virtual > 1, chunks, (pp - stage) * 1.0))
    return smallest(counted, setup.micro_batches * 1.0)


def stage_bytes(model: ModelSpec, setup: Setup | Ways, cluster: Cluster, holding: Held, keeps: Kept, counts: Any,
                place: Value) -> dict[str, Value]:
    """Bytes by cause on one device of the stage that has so many (`counts`) of each kind and is number `place`."""
    here = Held(*(np.tensordot(counts, one, 1) for one in holding))
    inner, layers = counts[:-3], max(1.0, float(counts[:-3].sum()))
    redo = np.asarray(setup.redo)
    each = np.tensordot(inner, np.moveaxis(keeps.layers, 1, 0), 1)
    activations = _chosen(each, redo) * in_flight(setup, place)
    again = np.max(np.where(inner.reshape(-1, *[1] * redo.ndim) > 0, keeps.layers[NONE], 0.0), axis=0)
    activations = activations + choose(redo == FULL, again, 0.0)
    logits = counts[-2] * keeps.logits
    sending = _sending(model, setup, here, layers, cluster)
    fragments = FRAGMENTS * (activations + logits + sending)
    return {**states(setup, here, layers), "activations": activations, "logits": logits, "communication": sending,
            "fragmentation": fragments, "process": cluster.device.process_bytes}


def _chosen(each: Value, redo: Value) -> Value:
    """Of an array over RECOMPUTE what each way recomputes."""
    return each[int(redo)] if redo.ndim == 0 else np.take_along_axis(each, redo[None, :], 0)[0]


def states(setup: Setup | Ways, here: Held, layers: float) -> dict[str, Value]:
    """Weights, gradients and what the optimiser keeps; of what lies in the host's memory a few of the layers at a
    time."""
    part = min(1.0, AHEAD / layers)
    return {name: size * choose(setup.away >= LEVELS[name], part, 1.0) for name, size in _sizes(setup, here).items()}


def _sizes(setup: Setup | Ways, here: Held) -> dict[str, Value]:
    trained = 0.0 if setup.frozen else 1.0
    return {
        "weights": ITEM * own(here, setup, 3),
        "gradients": trained * setup.gradient_bytes * own(here, setup, 2),
        "optimiser": trained * setup.optimiser_bytes * own(here, setup, 1),
    }


def least_bytes(model: ModelSpec, target: Target) -> float:
    """What a device needs at least, with everything shared by all devices: weights, gradients and the optimiser's
    states."""
    kinds, alone = Kinds(model), Setup(layout=Layout(), sequence=1, micro_batch=1, global_batch=1)
    count = holdings(model, alone, kinds).total @ kinds.each(((0, len(model.layers)),), 1)[0]
    return float(count) * (ITEM + alone.gradient_bytes + alone.optimiser_bytes) / target.cluster.world_size


def host_bytes(setup: Setup | Ways, here: Held) -> Value:
    """Bytes in the host's memory for the device of a stage."""
    return sum(choose(setup.away >= LEVELS[name], size, 0.0) for name, size in _sizes(setup, here).items())


def away_bytes(model: ModelSpec, setup: Setup, chunks: Chunks) -> int:
    """Bytes in the host's memory for the device of the stage that holds most."""
    kinds = Kinds(model)
    return int(host_bytes(setup, most(holdings(model, setup, kinds), kinds.stages(chunks, setup.layout.pp))))


def _sending(model: ModelSpec, setup: Setup | Ways, here: Held, layers: float, cluster: Cluster) -> Value:
    """What is being sent and received: rows of a whole sequence, and of shared weights two layers gathered, and the
    gradients of one in the precision in which they are summed, too."""
    if cluster.world_size == 1:
        return 0.0 * setup.rows
    rows = ITEM * setup.rows * model.hidden_size
    layer = here.total / layers
    shared = AHEAD * ITEM * layer + (ITEM + setup.gradient_bytes) * layer
    return largest(rows, choose(setup.zero == 3, shared, 0.0)) + rows


def peak_bytes(model: ModelSpec, setup: Setup, cluster: Cluster, drafts: int = 0, chunks: Chunks | None = None
               ) -> tuple[dict[str, int], ...]:
    """Bytes by cause on one device of each pipeline stage. `chunks`: layers of each stage or, interleaved, chunk."""
    kinds = Kinds(model)
    holding, keeps = holdings(model, setup, kinds), kept(model, setup, kinds)
    every = kinds.each(chunks or stages_of(model, setup, cluster, drafts), setup.layout.pp)
    return tuple({cause: int(size) for cause, size in stage_bytes(model, setup, cluster, holding, keeps, counts,
                                                                  number).items()}
                 for number, counts in enumerate(every))
