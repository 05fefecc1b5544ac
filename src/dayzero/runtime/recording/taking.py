"""One tensor of a module: what it is, which of its values are kept, and a copy of them that nobody changes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import torch

from dayzero.runtime.golden.dump import positions
from dayzero.schema import Column
from dayzero.schema.golden import Entry, Kind, Mode, Pass, Rows, What

from .rows import runs
from .sampling import Sampling
from .statistics import NOTHING, measured
from .stream import Stream, Taken
from .values import DTYPES, by_rows, local

_NEAR_ROOT = ("head", "model")
"""Kinds that may be called for the last positions only."""
_DECIDE = ("router", "experts")
"""Kinds that may take or give a decision."""
_FEW = 2
_MASK = "mask"
"""How arguments end that say which tokens see which: their size grows with the square of the tokens."""


def role(kind: Kind, what: What, slot: str, tensor: torch.Tensor, beside: Sequence[torch.Tensor]
         ) -> tuple[What, str] | None:
    """(what a tensor is, its slot); None: it is not taken. `beside`: all tensors of the same call and direction."""
    if tensor.dtype not in DTYPES:
        return None
    if kind not in _DECIDE:
        return _plain(kind, what, slot, tensor)
    indices = next((each for each in beside if each.dim() == _FEW and not each.is_floating_point()
                    and each.dtype != torch.bool), None)
    decides = (kind == "router" and what == "output") or (kind == "experts" and what == "input" and indices is not None)
    if decides and tensor is indices:
        return "router", "indices"
    if decides and indices is not None and tensor.shape == indices.shape:
        return "router", "weights"
    if kind == "router" and what == "output":
        return "router", "scores"
    return _plain(kind, what, slot, tensor)


def _plain(kind: Kind, what: What, slot: str, tensor: torch.Tensor) -> tuple[What, str] | None:
    """Of what decides nothing."""
    if what == "input" and (slot.endswith(_MASK) or (not tensor.is_floating_point() and kind != "embedding")):
        return None
    return ("logits", slot) if kind == "model" and what == "output" and slot == "logits" else (what, slot)


class _Seen(NamedTuple):
    """A tensor that was taken in this pass."""

    tensor: Any
    """A weak reference."""
    version: int
    taken: Taken


class Taker:
    """Makes entries of tensors and sends them off. What is seen a second time in a pass is kept once."""

    def __init__(self, stream: Stream, mode: Mode, sampling: Sampling) -> None:
        self._stream, self._mode, self._sampling = stream, mode, sampling
        self._order = 0
        self._seen: dict[int, _Seen] = {}
        self._hidden: dict[int, Any] = {}

    def hide(self, tensor: torch.Tensor) -> None:
        """Not to be taken: its values mean nothing, until the pass ends."""
        self._hidden[id(tensor)] = weakref.ref(tensor)

    def forget(self) -> None:
        """At the end of a pass."""
        self._seen, self._hidden = {}, {}

    def take(self, made: Pass, tensor: torch.Tensor, *, name: str, module: str, kind: Kind, what: What, slot: str,
             call: int, summed: tuple[str, ...] = ()) -> None:
        """`made`: the pass that it is of."""
        if self._hidden and id(tensor) in self._hidden and self._hidden[id(tensor)]() is tensor:
            return
        own = {"name": name, "module": module, "kind": kind, "what": what, "slot": slot, "call": call,
               "pass_no": made.number, "order": self._order}
        self._order += 1
        version = -1 if tensor.is_inference() else tensor._version  # inference tensors do not tell when they change
        seen = self._seen.get(id(tensor))
        if seen is not None and seen.version == version and seen.tensor() is tensor and not summed and not (
                kind in _NEAR_ROOT and seen.taken.entry.kind not in _NEAR_ROOT):
            self._stream.again(own, seen.taken)
            return
        taken = self._taken(*self._entry(made, tensor, own, summed), made)
        if version >= 0:
            self._seen[id(tensor)] = _Seen(weakref.ref(tensor), version, taken)
        self._stream.add(taken)

    def _entry(self, made: Pass, tensor: torch.Tensor, facts: dict[str, Any], summed: tuple[str, ...]
               ) -> tuple[Entry, torch.Tensor]:
        """(the entry without what is made of the values, values)."""
        batch, length = made.shape if len(made.shape) == _FEW else (0, 0)
        own, axes, last = by_rows(local(tensor), batch, length, last=facts["kind"] in _NEAR_ROOT)
        value = own.value
        if value.is_complex():
            value, axes = torch.view_as_real(value), (*axes, "complex")
        return Entry(**facts, axes=axes, shape=tuple(value.shape), dtype=DTYPES[value.dtype], statistics=NOTHING,
                     held=own.held, summed=own.summed + summed,
                     rows=_last_rows(made, value.shape[0]) if last else ()), value

    def _taken(self, entry: Entry, value: torch.Tensor, made: Pass) -> Taken:
        statistics = measured(value)
        if self._mode == "statistics":
            return Taken(entry, statistics, None, None)
        if self._mode == "sampled":
            rows = entry.rows or made.rows
            told = entry.axes[:1] == ("token",) and sum(each.count for each in rows) == len(value)
            sample = self._sampling.of(entry.shape, rows if told else None, entry.held,
                                       columns=entry.what != "router")
            entry, value = msgspec.structs.replace(entry, sample=sample), _chosen(value, entry.shape, sample)
        return Taken(entry, statistics, *on_host(value))


def _last_rows(made: Pass, count: int) -> tuple[Rows, ...]:
    """Of [batch, fewer positions]: the last ones of each sequence."""
    batch, length = made.shape
    every = positions(made.rows).reshape(batch, length, 2)[:, length - count // batch:]
    return runs(every[..., 0].ravel(), every[..., 1].ravel())


def _chosen(value: torch.Tensor, shape: tuple[int, ...], sample: Any) -> torch.Tensor:
    """The values of the sample."""
    for axis, kept in ((0, sample.rows), (len(shape) - 1, sample.columns)) if sample is not None else ():
        if kept is not None:
            value = value.index_select(axis, _index(kept, value.device))
    return value


def _index(column: Column, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(column.values.copy()).to(device)


def on_host(value: torch.Tensor) -> tuple[torch.Tensor, Callable[[], Any] | None]:
    """(a copy on the host, what waits until it is there). From a device it goes on beside computing, into memory that
    the device writes to by itself."""
    if value.device.type == "cpu":
        return value.clone(memory_format=torch.contiguous_format), None
    try:
        copied = value.contiguous().to("cpu", non_blocking=True)
        event = torch.Event(value.device)
        event.record()
    except (RuntimeError, NotImplementedError):  # a device without events
        return value.to("cpu").contiguous(), None
    return copied, event.synchronize
