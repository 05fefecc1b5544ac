"""States of sequences: a slot for each in every state's pool, and the batch that the last call worked on.

The batch stays as it is while the same sequences go on; only then is nothing copied between steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dayzero.runtime.sharding import like, local

Name = tuple[str, int]
Units = Sequence[Sequence[int]]
"""For each unit of sequences' states the slots that the sequences have."""
_STATES = ("conv_states", "recurrent_states")


class Slots:
    """One state: [chunks, slots of a chunk, state]. The pool is made when a state comes that tells its size."""

    def __init__(self) -> None:
        self.pool: torch.Tensor | None = None
        self.unit = 0
        """In which of the chunks that a sequence's states take this one is."""
        self._given: torch.Tensor | None = None

    @property
    def slot_bytes(self) -> int:
        """What one sequence's state takes; 0 before there was one."""
        return 0 if self.pool is None else self.pool[0, 0].numel() * self.pool.element_size()

    def read(self, slots: Sequence[int]) -> torch.Tensor:
        """[batch, state]: the pool's own memory where the slots lie one behind the other."""
        assert self.pool is not None
        chunk, first = divmod(slots[0], self.pool.shape[1])
        near = self._in_a_row(slots)
        part = self.pool[chunk, first:first + len(slots)] if near else self.pool[self._at(slots)]
        return part if self._given is None else like(part, self._given)

    def write(self, state: torch.Tensor, slots: Sequence[int], shape: tuple[int, int]) -> None:
        """The batch's states; `shape`: chunks and slots of a pool that is made now."""
        part = local(state)
        if self.pool is None:
            self.pool = part.new_zeros(*shape, *part.shape[1:])
            self._given = state[:1]
        chunk, first = divmod(slots[0], self.pool.shape[1])
        if part.data_ptr() != self.pool[chunk, first].data_ptr() or not self._in_a_row(slots):
            self.pool[self._at(slots)] = part

    def _in_a_row(self, slots: Sequence[int]) -> bool:
        assert self.pool is not None
        return slots[0] % self.pool.shape[1] + len(slots) <= self.pool.shape[1] and all(
            slot == slots[0] + row for row, slot in enumerate(slots))

    def _at(self, slots: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.pool is not None
        at = torch.tensor(slots, device=self.pool.device)
        return at // self.pool.shape[1], at % self.pool.shape[1]

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """The states of slots into others."""
        if self.pool is not None:
            self.pool[self._at(targets)] = self.pool[self._at(sources)]

    def place(self, pool: torch.Tensor, unit: int) -> None:
        """States are kept there."""
        self.pool, self.unit = pool, unit


class States:
    """The states of a layer that has dictionaries of them as the library's have."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self.slots: dict[Name, Slots] = {(name, number): Slots() for name in _STATES
                                         for number in range(layer.number_of_states)}
        self._flags: dict[int, bool] = {}

    def clear(self) -> None:
        """For rows without a past."""
        layer = self._layer
        for number in range(layer.number_of_states):
            layer.has_previous_state[number] = False
            layer.conv_states[number] = layer.recurrent_states[number] = None
            layer.is_conv_states_initialized[number] = layer.is_recurrent_states_initialized[number] = False

    def load(self, slots: Units) -> None:
        """The states of these slots as the batch."""
        layer = self._layer
        for (name, number), each in self.slots.items():
            if each.pool is not None:
                getattr(layer, name)[number] = each.read(slots[each.unit])
                getattr(layer, f"is_{name}_initialized")[number] = True
        layer.has_previous_state.update(self._flags)

    def store(self, slots: Units, shape: tuple[int, int]) -> None:
        """Write the batch to the slots; `shape` as of `Slots.write`."""
        for key, state in self._present():
            self.slots[key].write(state, slots[self.slots[key].unit], shape)
        self._flags.update(self._layer.has_previous_state)

    def _present(self) -> Iterator[tuple[Name, torch.Tensor]]:
        for name in _STATES:
            for number, state in getattr(self._layer, name).items():
                if state is not None:
                    yield (name, number), state
