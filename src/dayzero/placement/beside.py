"""What an engine takes of a device beside its budget, and whether that fits in what the budget leaves.

An engine that measures a step before it allocates its pool does not see what is taken earlier (a process, open
communicators) and later (captured graphs, buffers of kernels that run for the first time). All of it is between bounds:
process      by engine
collectives  by engine, for several devices; more with pipeline stages
graphs       captured sizes * layers of the stage * bytes of one graph and layer; sizes are 1, 2, 4, 8, 16, ... tokens,
             for steps that decode only up to a token for each sequence
buffers      rows * (input width + a rank's width) * 2 bytes, rows = tile * (E + (T top_k - E) / tile): what E experts
             get of T tokens, in whole tiles, when one token goes to each expert and the others fill tiles
"""

from __future__ import annotations

from dayzero.schema import Device, FeedForward, Layout, ModelSpec
from dayzero.schema.allocation import Allocation, Batch, Beside, Between, Buffer

_WIDE = 2
"""Bytes of a value of 16 bits."""


def beside_bytes(model: ModelSpec, layout: Layout, rules: Allocation, device: Device, layers: range, batch: Batch
                 ) -> Between:
    """What one rank of the stage with these layers takes beside the budget."""
    stated = rules.beside or Beside()
    graphs = Between() if stated.graphs_in_budget else graph_bytes(stated, layers, batch)
    return stated.process + _collectives(stated, layout, device) + graphs + _buffers(model, layout, stated, device,
                                                                                      layers, batch)


def graph_bytes(stated: Beside, layers: range, batch: Batch) -> Between:
    """What captured graphs take."""
    largest = min(stated.graph_tokens, stated.graph_sequences * batch.sequences)
    captured = _sizes(stated, largest) + (stated.graph_passes - 1) * _sizes(stated, min(largest, batch.sequences))
    return stated.graph * (captured * len(layers))


def budgeted_graph_bytes(rules: Allocation | None, layers: range, batch: Batch) -> int:
    """The middle of what captured graphs take, where the budget pays for them."""
    if rules is None or rules.beside is None or not rules.beside.graphs_in_budget:
        return 0
    between = graph_bytes(rules.beside, layers, batch)
    return (between.least + between.most) // 2


def _sizes(stated: Beside, largest: int) -> int:
    """Sizes of graphs of at most so many tokens."""
    fine = largest if stated.graph_coarse is None else min(largest, stated.graph_coarse)
    return sum(size <= largest for size in (1, 2, 4)) + fine // 8 + (largest // 16 - fine // 16)


def _collectives(stated: Beside, layout: Layout, device: Device) -> Between:
    if layout.world_size == 1:
        return Between()
    fabric = any(link.devices > 1 for link in device.links)
    opened = stated.collectives if fabric else stated.bus_collectives
    return opened + stated.stages if layout.pp > 1 else opened


def _buffers(model: ModelSpec, layout: Layout, stated: Beside, device: Device, layers: range, batch: Batch) -> Between:
    """Of the largest block of experts of the stage. The engine may choose a kernel without such a buffer: at least
    nothing."""
    schemes = {family.scheme for family in model.families if family.experts}
    found = next((buffer for buffer in stated.buffers
                  if device.arch in buffer.archs and schemes & set(buffer.schemes)), None)
    here = {model.layers[index].feed_forward for index in layers}
    blocks = [block for name, block in model.feed_forwards.items() if name in here and block.experts]
    if found is None or not blocks:
        return Between()
    asked = max(buffer_bytes(found, block, layout, batch.tokens) for block in blocks)
    return Between(most=asked + int(found.tuning * asked if layout.ep > layout.tp else 0))


def buffer_bytes(buffer: Buffer, block: FeedForward, layout: Layout, tokens: int) -> int:
    """What the kernel asks for: the rows of both products. With expert parallelism over replicas a rank has the tokens
    of all of them."""
    visits = tokens * max(1, layout.ep // layout.tp) * block.top_k
    filled = min(block.experts, visits)
    rows = (filled + (visits - filled) // buffer.tile) * buffer.tile
    return rows * (block.input_width + -(-block.width // layout.expert_tp)) * _WIDE
