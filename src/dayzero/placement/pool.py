"""The pool that an engine is left with for keys and values: its budget, less weights and what a step needs.

Formulas, per rank (docs/numbers.md): a share u of the memory M that the budget is a share of,
total  u (M - driver) - weights - libraries - collectives - peak of a step - graphs, where the budget pays for them
free   u (M - driver - collectives) - weights
left   u (M - driver - collectives - weights - peak of a step)
The peak of a step is that of its activations or of sampling, whichever is larger; it is only subtracted by engines that
measure it. What is taken beside a share of all memory has to fit in the rest, see `beside`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dayzero.schema import Device, Engine, Layout, ModelSpec
from dayzero.schema.allocation import Allocation, Batch, Between, Reserve

from .beside import beside_bytes, budgeted_graph_bytes
from .cache import Room, collective_bytes, kinds, room
from .held import held_bytes
from .memory import activation_bytes
from .sequence import value_bytes
from .stages import split_layers


@dataclass(frozen=True)
class Settings:
    """How the engine is started; what is None is as the engine has it."""

    utilization: float | None = None
    """The share of the budget."""
    cache_dtype: str = "auto"
    """dtype of keys and values."""
    length: int | None = None
    """Longest sequence, in tokens."""
    tokens: int | None = None
    """Prompt tokens of one step."""
    sequences: int | None = None
    """Sequences decoded together."""
    state_share: float | None = None
    """Bytes for states for each byte of cache."""


@dataclass(frozen=True)
class Stage:
    """One rank of one pipeline stage."""

    weights: int
    """Bytes of weights, with what the engine makes of them."""
    pool: int
    """Bytes left for keys, values and states; negative: what is missing."""
    room: Room
    """What they hold."""
    beside: Between
    """Bytes taken beside the budget."""


@dataclass(frozen=True)
class Pool:
    """What an engine makes of the memory of a device."""

    stages: tuple[Stage, ...]
    """Of each pipeline stage, its fullest rank."""
    length: int
    """Longest sequence that was asked for, or that the model has."""
    spare: int | None = None
    """Bytes that the budget leaves for what is taken beside it; None: nothing is known of that."""

    @property
    def least(self) -> Stage:
        """The stage that holds the fewest tokens: all stages hold as many."""
        return min(self.stages, key=lambda stage: (stage.room.tokens, stage.pool))

    @property
    def beside(self) -> Between:
        """What the stage that needs most takes beside the budget."""
        return max((stage.beside for stage in self.stages), key=lambda bytes_: bytes_.most)

    def starts(self, allocation: Allocation) -> bool | None:
        """Whether the engine starts and takes a first step; None: it depends on what is only known between bounds."""
        if not self.holds(allocation) or (self.spare is not None and self.beside.least > self.spare):
            return False
        return True if self.spare is None or self.beside.most <= self.spare else None

    def holds(self, allocation: Allocation) -> bool:
        """Whether there is a pool, and where the engine looks at that a sequence of full length fits."""
        return self.least.pool > 0 and self.least.room.tokens > 0 and (
            not allocation.checks_length or self.least.room.sequences >= 1)


def pool(model: ModelSpec, layout: Layout, engine: Engine, allocation: Allocation, device: Device,
         settings: Settings = Settings()) -> Pool:
    """The pool on such devices, whose memory is what the vendor's tool counts. Raises LayoutError for more stages than
    layers and ReleaseError when a size that the cache depends on is not known."""
    length = settings.length or model.max_positions or 0
    if settings.state_share is not None:
        allocation = msgspec.structs.replace(allocation, state_share=settings.state_share)
    batch = _batch(allocation, device.memory_bytes, settings, length)
    stages = []
    for start, stop in split_layers(model, layout.pp, allocation.longer_stages):
        layers = range(start, stop)
        weights = held_bytes(model, layout, engine, allocation, layers, device.arch)
        peak = step_bytes(model, layout, allocation, layers, batch) if allocation.profiled else 0
        peak += budgeted_graph_bytes(allocation, layers, batch)
        left = _left(layout, allocation, device, settings, weights, peak, batch)
        found = kinds(model, layout, allocation, layers, settings.cache_dtype)
        held = room(found, left, max(1, -(-length // layout.cp)), batch.tokens, allocation)
        stages.append(Stage(weights=weights, pool=left,
                            room=Room(tokens=held.tokens * layout.cp, sequences=held.sequences),
                            beside=beside_bytes(model, layout, allocation, device, layers, batch)))
    return Pool(stages=tuple(stages), length=length, spare=_spare(layout, allocation, device, settings, batch))


def _spare(layout: Layout, allocation: Allocation, device: Device, settings: Settings, batch: Batch) -> int | None:
    """What a share of all memory leaves."""
    if allocation.beside is None or allocation.budget != "total":
        return None
    visible = device.memory_bytes - allocation.driver_bytes
    return visible - int((settings.utilization or _share(allocation, device.memory_bytes, layout, batch)) * visible)


def _batch(allocation: Allocation, memory: int, settings: Settings, length: int) -> Batch:
    """The step that is measured."""
    usual = allocation.batch(memory) or Batch(above_bytes=0, tokens=0, sequences=0)
    tokens = settings.tokens or usual.tokens
    if allocation.whole_prompts and not settings.tokens:
        pieces = allocation.piece_above is not None and length > allocation.piece_above
        tokens = usual.tokens if pieces else max(length, 2048)
    sequences = min(settings.sequences or usual.sequences, tokens or usual.sequences)
    return Batch(above_bytes=0, tokens=tokens, sequences=sequences)


def _left(layout: Layout, allocation: Allocation, device: Device, settings: Settings, weights: int, peak: int,
          batch: Batch) -> int:
    """Bytes for keys, values and states."""
    memory, collectives = device.memory_bytes, int(collective_bytes(layout, allocation, device))
    share = settings.utilization or _share(allocation, memory, layout, batch)
    visible = memory - allocation.driver_bytes
    if allocation.budget == "total":
        return int(share * visible) - weights - allocation.library_bytes - collectives - peak
    if allocation.budget == "free":
        return int(share * (visible - collectives)) - weights
    return int(share * (visible - collectives - weights - peak))


def _share(allocation: Allocation, memory: int, layout: Layout, batch: Batch) -> float:
    """The share that the engine takes when none is stated."""
    if allocation.utilization != "reserve":
        return allocation.utilization
    return 1 - reserved(allocation.reserve, memory, layout, batch) / memory


def reserved(reserve: Reserve, memory: int, layout: Layout, batch: Batch) -> int:
    """Bytes that an engine which works its share out leaves free."""
    kept = reserve.fixed + int(reserve.per_token * max(batch.tokens, 2048) + reserve.per_sequence * batch.sequences)
    kept += reserve.per_device * layout.tp * layout.pp
    return max(kept, reserve.least) if memory > reserve.large_bytes else kept


def step_bytes(model: ModelSpec, layout: Layout, allocation: Allocation, layers: range, batch: Batch) -> int:
    """Bytes at the peak of a full step on one rank: activations, or in the last stage sampling."""
    activations = int(activation_bytes(model, layout, layers, batch.tokens, allocation.every_row))
    last = layers.stop == len(model.layers)
    sampling = batch.sequences * model.vocab_size * allocation.logit_bytes if last else 0
    return max(activations, sampling + batch.tokens * model.hidden_size * value_bytes(model))
