"""Makes the engine with which one rank serves, over a cache that fits into its memory.

Each rank of a replica runs the same engine on the same requests; who has logits tells the others the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from dayzero.backends import host
from dayzero.errors import NotPossible, UsageError

from .pages import ObservedPages, Pages, Room, beginning, block_tokens, cut, layer_kinds
from .rank import Rank
from .serving import BUDGET, Engine, Lanes, Worker, model_forward

_CACHE = 0.5
"""Part of the memory that is free once weights are loaded which the cache may take, of all ranks together."""


def serving_engine(rank: Rank, lengths: Sequence[int], sequences: int, free: int | None = None) -> Engine | Lanes:
    """An engine of a rank that has joined, with a cache for as many sequences of these lengths at a time as memory
    allows: `free` bytes of its device, or None: those of this machine, which all ranks share. All ranks have to ask
    together, with the same lengths.

    Where ranks are stages of a pipeline, prompts are computed in parts, so that all stages work. Generating, stages of
    devices with memory of their own take turns with several engines; on the host, where reading the weights of half a
    batch takes as long as of a whole one and all ranks share the memory, that would be slower. Raises NotPossible for
    layouts that the cache of the model's code cannot have, UsageError on all ranks when one has no room for the longest
    sequence."""
    assert rank.mesh is not None
    layout, memory = rank.mesh.place.layout, cache_memory(rank, free)
    if rank.pipeline is None:
        return lane(rank, lengths, sequences, memory)[0]
    rank.pipeline.shares_logits = False
    count = 1 if free is None else max(1, min(layout.pp, len(lengths) // layout.dp))
    return Lanes([lane(rank, lengths, -(-sequences // count), memory // count, layout.pp) for _ in range(count)])


def cache_memory(rank: Rank, free: int | None = None) -> int:
    """Bytes that the cache of a rank that has joined may take; `free` as above."""
    assert rank.mesh is not None
    ranks = rank.mesh.place.layout.world_size
    memory = int(host.available_memory() * _CACHE) // ranks if free is None else int(free * _CACHE)
    room = rank.tiers.cache_room if rank.tiers is not None else None
    return memory if room is None else min(memory, room)


def lane(rank: Rank, lengths: Sequence[int], sequences: int, memory: int, calls: int = 1, budget: int = BUDGET
         ) -> tuple[Engine, Worker]:
    """One engine, and what carries out its steps. `memory`: bytes for its cache; `calls`, `budget`: of the engine."""
    assert rank.mesh is not None
    mesh = rank.mesh
    forward = model_forward(rank.model)
    kinds = None if rank.own else layer_kinds(rank.model.config)
    size = block_tokens(lengths)
    pages = Pages(kinds, block_tokens=size, device=rank.device) if kinds is not None else ObservedPages(
        beginning(rank.model, rank.device), block_tokens=size, device=rank.device)
    kept = sum(2 if group.window is None else 1 for group in pages.groups)
    if mesh.least(kept) != -mesh.least(-kept):
        raise NotPossible("the stages' layers keep the past in different ways, and the code has a cache of its own",
                          "choose a layout with pp=1")
    parts = pages.measure(lambda call, cache: forward(call.input_ids, call.position_ids, call.mask, cache))
    try:
        room, told = cut(parts, memory, block_tokens=size, lengths=lengths, sequences=sequences), ""
    except UsageError as error:
        room, told = None, error.message
    if not mesh.least(int(room is not None)) or room is None:  # all ranks go on, or none does
        raise UsageError(told or "another rank has no room for its cache", "give it more memory, or allow fewer tokens")
    pages.allocate(room)
    rooms = [Room.of(numbers) for numbers in mesh.every(room.numbers)]
    worker = Worker(forward, pages, alone=mesh.place.layout.world_size == 1,
                    stages=mesh.stages if rank.pipeline else None, sharing=mesh.tp)
    return Engine(worker.run, pages.groups, rooms, block_tokens=size, uniform=pages.uniform,
                  parts=calls, budget=budget), worker
