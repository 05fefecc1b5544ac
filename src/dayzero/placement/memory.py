"""What one device of a pipeline stage needs in memory, by cause.

Formulas (docs/numbers.md names them; T tokens of one prefill step, b bytes of a value, s sequences of a replica):
weights      stored bytes of every family as `split` cuts them; of an engine whose rules are known as it holds them
kv_cache     s * length (at most the window) * cache of one layer, divided as far as key/value heads go, and what the
             prompts have in common once; a latent cache is whole on every rank of a tp group; where attention_tp is
             below tp, a rank holds only its group's share of the sequences. Where an engine whose rules are known has
             unified pages: whole pages, see `cache`
state        s * state of one linear layer, divided by heads; the same share of the sequences
activations  T*b*3*hidden (residual, its norm, a block's output) + the largest of the layers' inner tensors
logits       one row of the whole vocabulary for each sequence, in b bytes and in fp32; last stage only
workspace    what an engine whose rules are known takes for libraries
communication T*b*2*hidden for what is being sent and received, when there is more than one rank; and what an engine
             whose rules are known takes for collectives
graphs       the middle of what captured graphs take by `beside`, where such an engine's budget pays for them
fragmentation what the allocator under such an engine rounds the weights up by
process      what a rank's process takes before any weight is loaded, as the device states it
"""

from __future__ import annotations

from functools import partial

import msgspec

from dayzero.arrays import Value, ceiling, choose, largest
from dayzero.schema import Attention, Device, FeedForward, Layout, ModelSpec, Target
from dayzero.schema.allocation import Allocation

from .beside import budgeted_graph_bytes
from .cache import allocated_sequence, allocation_of, collective_bytes, reserve_bytes
from .draft import drafted
from .held import held_bytes, rounding_bytes
from .many import Layouts, Ranges, of_stage
from .sequence import (
    FP32,
    attention_sequences,
    layer_cache_bytes,
    layer_state_bytes,
    prefill_tokens,
    sequence_bytes,
    sequences_per_replica,
    value_bytes,
)
from .stages import split_layers

CAUSES = ("weights", "kv_cache", "state", "activations", "logits", "workspace", "communication", "graphs",
          "fragmentation", "process")
"""Keys of what `device_bytes` returns, in the order in which they are shown."""
__all__ = [
    "CAUSES", "activation_bytes", "attention_sequences", "device_bytes", "fullest_device", "layer_cache_bytes",
    "layer_state_bytes", "prefill_tokens", "sequence_bytes", "sequences_per_replica", "value_bytes",
]  # fmt: skip


def attention_values(attention: Attention, layout: Layout | Layouts) -> Value:
    """Values for each token that are alive on one rank inside an attention block: query, keys, values, output."""
    degree = layout.attention_degree
    heads = -(-attention.heads // degree)
    kv_heads = heads if attention.kind == "latent" else -(-attention.kv_heads // degree)
    width = heads * (attention.head_dim + attention.v_head_dim) + kv_heads * (attention.head_dim + attention.v_head_dim)
    return width + (attention.kv_rank or 0) + (attention.rope_dim or 0) + (attention.q_rank or 0)


def feed_forward_values(block: FeedForward, layout: Layout | Layouts, every_row: bool = False) -> Value:
    """Values for each token that are alive on one rank inside a feed-forward block: gate, up and their product; for
    experts also the token's copies on the way in and out, as many as a balanced router sends to one rank; of a single
    replica with `every_row` one for each of the token's experts, wherever they are."""
    if block.kind == "dense":
        return 3 * -(-block.width // layout.tp)
    replicas = largest(1, layout.ep // layout.tp)
    copies = -(-block.top_k * replicas // layout.ep)
    if every_row:
        copies = choose(layout.dp == 1, block.top_k, copies)
    routed = copies * (2 * block.input_width + 3 * -(-block.width // layout.expert_tp))
    return routed + 3 * -(-block.shared_width // layout.tp)


def _has(model: ModelSpec, kind: tuple[str, str], layers: range) -> bool:
    """Whether any of the layers has that (field of `Layer`, name)."""
    field, name = kind
    return any(getattr(model.layers[index], field) == name for index in layers)


def activation_bytes(model: ModelSpec, layout: Layout | Layouts, layers: range | Ranges, tokens: Value,
                     every_row: bool = False) -> Value:
    """Bytes of activations at the peak of a step of `tokens` tokens, on one rank of the stage that holds `layers`.
    `every_row`: see `feed_forward_values`."""
    values = {("attention", name): attention_values(kind, layout) for name, kind in model.attentions.items()}
    values |= {("feed_forward", name): feed_forward_values(block, layout, every_row)
               for name, block in model.feed_forwards.items()}
    inner = largest(0, *(choose(of_stage(layers, partial(_has, model, kind)), value, 0)
                         for kind, value in values.items()))
    return tokens * value_bytes(model) * (3 * model.hidden_size + inner)


def one_sequence(model: ModelSpec, layout: Layout | Layouts, layers: range | Ranges, target: Target
                 ) -> tuple[Value, Value]:
    """(cache, state) bytes on one rank of the stage that holds `layers`, for one sequence of full length without what
    it shares; with the cache of a draft that the release brings along, which the last stage computes."""
    workload, rules = target.workload, allocation_of(target.engine)
    own = msgspec.structs.replace(workload, input_tokens=workload.computed_tokens, prefix_hit=0.0)
    cache, state = allocated_sequence(model, layout, layers, own, rules)
    draft = drafted(model, target)
    if draft:
        last = of_stage(layers, lambda one: one.stop == len(model.layers))
        cache = cache + choose(last, allocated_sequence(draft, layout, range(1), own, rules)[0], 0)
    return cache, state


def shared_prefix(model: ModelSpec, layout: Layout | Layouts, layers: range | Ranges, target: Target) -> Value:
    """Bytes on one rank of the stage of what the prompts have in common, which is cached once; 0: they share nothing.
    """
    workload = target.workload
    if not workload.shared_tokens:
        return 0
    common = msgspec.structs.replace(workload, input_tokens=workload.shared_tokens, output_tokens=0, prefix_hit=0.0)
    return allocated_sequence(model, layout, layers, common, allocation_of(target.engine))[0]


def device_bytes(model: ModelSpec, layout: Layout | Layouts, layers: range | Ranges, target: Target
                 ) -> dict[str, Value]:
    """Bytes by cause on the fullest device of the pipeline stage that holds `layers`. Raises ReleaseError when a size
    that the cache depends on is not known."""
    workload = target.workload
    sequences, tokens = sequences_per_replica(workload, layout), prefill_tokens(workload, layout)
    held = ceiling(attention_sequences(layout, sequences))
    rules, device = allocation_of(target.engine), target.cluster.device
    cache, state = one_sequence(model, layout, layers, target)
    last = of_stage(layers, lambda one: one.stop == len(model.layers))
    return {
        "weights": held_bytes(model, layout, target.engine, rules, layers, device.arch),
        "kv_cache": held * cache + shared_prefix(model, layout, layers, target),
        "state": held * state,
        "activations": activation_bytes(model, layout, layers, tokens, bool(rules and rules.every_row)),
        "logits": choose(last, sequences * model.vocab_size * (value_bytes(model) + FP32), 0),
        "workspace": reserve_bytes(rules),
        "communication": choose(layout.world_size > 1, 2 * tokens * value_bytes(model) * model.hidden_size, 0)
                         + (collective_bytes(layout, rules, device) if rules else 0),
        "graphs": _graph_bytes(rules, device, layers),
        "fragmentation": rounding_bytes(model, layout, target.engine, rules, layers),
        "process": device.process_bytes,
    }


def _graph_bytes(rules: Allocation | None, device: Device, layers: range | Ranges) -> Value:
    batch = rules.batch(device.memory_bytes) if rules else None
    return budgeted_graph_bytes(rules, range(1), batch) * of_stage(layers, len) if batch else 0


def fullest_device(model: ModelSpec, layout: Layout, target: Target) -> dict[str, int]:
    """`device_bytes` of the stage that needs most. Raises LayoutError for more stages than layers."""
    stages = (device_bytes(model, layout, range(*layers), target) for layers in split_layers(model, layout.pp))
    return max(stages, key=lambda causes: sum(causes.values()))
