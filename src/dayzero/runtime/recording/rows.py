"""What a model is called with, as rows of (sequence, position)."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dayzero.schema import Column
from dayzero.schema.golden import PADDING, Pass, Rows

IDS, EMBEDDED, MASK = "input_ids", "inputs_embeds", "attention_mask"
POSITIONS = ("position_ids", "positions")
CACHES = ("cache", "past_key_values", "cache_params", "past_key_value")
"""The library's names for what its models are called with."""
Ints = NDArray[np.int64]


class Sequences:
    """Numbers the sequences that a model sees, and knows them again by the cache that they are in. `first`, `step`: of
    the numbers, so that replicas give different ones."""

    def __init__(self, first: int = 0, step: int = 1) -> None:
        self._next, self._step = first, step
        self._expected: list[int] = []
        self._caches: dict[int, tuple[Any, list[int], int]] = {}
        self._now: list[int] = []
        self._length = 0

    def expect(self, numbers: Sequence[int]) -> None:
        """The sequences of the next call that does not go on with some, in order."""
        self._expected = list(numbers)

    def begin(self, number: int, given: dict[str, Any]) -> Pass:
        """The pass that a call with these arguments is."""
        ids, shape = _tokens(given)
        cache = next((given[name] for name in CACHES if given.get(name) is not None), None)
        self._now = []
        if not shape:
            return Pass(number=number, phase="prefill", shape=(), rows=(), tokens=Column([]))
        held = self._caches.get(id(cache))
        known, length = held[1:] if held is not None and held[0]() is cache else ([], 0)
        past = _cached(cache) or length
        self._length = past + shape[1]
        told, position = _layout(given, shape, past)
        count = max(shape[0], int(told.max()) + 1) if told.size else 0
        self._now = known if past and len(known) == count else self._taken(count)
        sequence = np.where(told == PADDING, PADDING, np.array([*self._now, PADDING])[told])
        phase: Literal["prefill", "decode"] = "decode" if past else "prefill"
        return Pass(number=number, phase=phase, shape=shape, rows=runs(sequence.ravel(), position.ravel()),
                    tokens=Column(ids if ids is not None else []))

    def end(self, given: dict[str, Any], output: Any) -> None:
        """Remember in which cache the sequences of the call now are."""
        put_out = output if isinstance(output, Mapping) else {}  # asking for others may warn
        for cache in (*(given.get(name) for name in CACHES), *(put_out.get(name) for name in CACHES)):
            if cache is not None and self._now and not isinstance(cache, torch.Tensor | tuple | list):
                self._caches = {key: each for key, each in self._caches.items() if each[0]() is not None}
                self._caches[id(cache)] = weakref.ref(cache), self._now, self._length

    def _taken(self, count: int) -> list[int]:
        made, self._expected = self._expected[:count], self._expected[count:]
        while len(made) < count:
            made.append(self._next)
            self._next += self._step
        return made


def runs(sequence: Ints, position: Ints) -> tuple[Rows, ...]:
    """Rows in runs; [rows] each."""
    if not len(sequence):
        return ()
    position = np.where(sequence == PADDING, 0, position)
    steps = np.where(sequence[1:] == PADDING, 0, 1)
    new = (sequence[1:] != sequence[:-1]) | (position[1:] != position[:-1] + steps)
    starts = np.concatenate([[0], np.flatnonzero(new) + 1])
    counts = np.diff([*starts, len(sequence)])
    return tuple(Rows(sequence=int(sequence[first]), first=int(position[first]), count=int(count))
                 for first, count in zip(starts, counts, strict=True))


def _tokens(given: dict[str, Any]) -> tuple[Ints | None, tuple[int, ...]]:
    """(token ids row by row, or None; [batch, length] or nothing when it is not known)."""
    ids, embedded = given.get(IDS), given.get(EMBEDDED)
    if ids is None:
        ids = next((each for each in given.values() if isinstance(each, torch.Tensor) and each.dim() == 2
                    and each.dtype in (torch.int64, torch.int32)), None) if embedded is None else None
    if isinstance(ids, torch.Tensor) and ids.dim() in (1, 2):
        return ids.detach().to("cpu", torch.int64).reshape(-1).numpy(), (1, *ids.shape)[-2:]
    if isinstance(embedded, torch.Tensor) and embedded.dim() in (2, 3):
        return None, (1, *embedded.shape)[-3:-1]
    return None, ()


def _cached(cache: Any) -> int:
    """Tokens of each sequence that are in a cache."""
    length = getattr(cache, "get_seq_length", None)
    if callable(length):
        try:
            return int(length())
        except (TypeError, ValueError, IndexError, AttributeError):
            return 0
    if isinstance(cache, tuple | list) and cache and isinstance(cache[0], tuple | list) and cache[0]:
        return int(cache[0][0].shape[-2])
    return int(bool(getattr(cache, "has_previous_state", False)))


def _layout(given: dict[str, Any], shape: tuple[int, ...], past: int) -> tuple[Ints, Ints]:
    """[batch, length] each: (sequence of this call, from 0, or -1 for padding; position in it)."""
    batch, length = shape
    positions = next((given[name] for name in POSITIONS if isinstance(given.get(name), torch.Tensor)), None)
    mask = given.get(MASK)
    told = np.broadcast_to(np.arange(batch)[:, None], shape).copy()
    if isinstance(mask, torch.Tensor) and mask.dim() == 2 and mask.shape[0] == batch and mask.shape[1] >= length:
        real = mask.detach().cpu().numpy() != 0
        position = real.cumsum(1, dtype=np.int64)[:, -length:] - 1
        return np.where(real[:, -length:], told, PADDING), position
    if isinstance(positions, torch.Tensor) and positions.numel() == batch * length:
        own = positions.detach().to("cpu", torch.int64).reshape(shape).numpy()
        if batch == 1 and length > 1 and (own[0, 1:] != own[0, :-1] + 1).any():
            return np.concatenate([[0], (own[0, 1:] != own[0, :-1] + 1).cumsum()])[None], own
        return told, own
    return told, np.broadcast_to(past + np.arange(length), shape)
