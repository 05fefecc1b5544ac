"""Puts a rank's weights where there is room for them, and makes its model run like that. Needs torch."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from dayzero.backends import host
from dayzero.data.vocabulary import vocabulary
from dayzero.errors import UsageError
from dayzero.runtime.timeline import OFF, Timeline
from dayzero.schema import Budget, TierRecord

from .budget import BLOCK, STAGES, Sizes, Split, kinds, sizes, split
from .dense import Blocks, Rows, StreamedLayers
from .experts import ListedExperts, StackedExperts
from .foresight import WAYS, Foresight
from .measure import bandwidth
from .parts import Cut, Experts, Finder, Given, Layer
from .placing import Placing, fill, put
from .policies import Fading, Frequent, Policy, Recent
from .slots import Flat, Reading, Slots, Stacked, flat_bytes
from .stored import Stored

POLICIES: dict[str, Callable[[], Policy]] = {
    "recent": Recent, "frequent": Frequent, "fading": lambda: Fading(HALF)}
HALF = 32.0
"""Passes after which a use counts half as much."""
_ALL = 1 << 62
_BRIEFLY = 0.3
"""Seconds of reads that tell a bandwidth for a record."""
_TENTH = 10
RESERVE = 128 << 20
"""Bytes that computing takes beside weights, unless the caller knows better: activations, logits, buffers of reads."""


class Tiers:
    """Weights of layers and single experts in memory as far as there is room, the others read when they are needed.

    `budget.device` is for a device other than the host, `budget.host` for the private memory of this process; `reserve`
    bytes of it are left to the cache, activations and buffers (None: 128 MiB, or a tenth of it). Where it counts
    weights alone, it is raised to the least that works. On the host alone there are two tiers: memory and files. On a
    device, the host's memory holds what is needed most often, as it is in the files. With `budget.keep` "stored"
    memory holds layers and experts as they are in the files, and next to no values. `shares` {name: cut} are those of
    this rank, which has nothing of what is not in them; {}: it has all. With `from_disk` the system's page cache is
    dropped before each pass.

    Raises UsageError for budgets that are too small, with what the least is.
    """

    def __init__(self, model: Any, checkpoint: Any, shares: Mapping[str, Cut | None], budget: Budget | None = None, *,
                 device: torch.device | str = "cpu", dtype: torch.dtype | None = None, reserve: int | None = None,
                 threads: int = 4, policy: str = "fading", foresight: str = "tried", from_disk: bool = False,
                 timeline: Timeline = OFF) -> None:
        if policy not in POLICIES or foresight not in WAYS:
            raise UsageError(f"there is no {policy if policy not in POLICIES else foresight}",
                             f"policies are {', '.join(POLICIES)}; ways of foresight are {', '.join(WAYS)}")
        self._model, self._checkpoint = model, checkpoint
        self._shares = Given(shares)
        self._device, self._dtype, self._from_disk = torch.device(device), dtype, from_disk
        self._policy, self._way = policy, foresight
        self._finder = Finder(model, checkpoint, shares, dtype)
        self._found = self._finder.find()
        self._reading = Reading(checkpoint, threads, timeline)
        self._tied = self._found.table and self._found.head and (
            self._found.table[1].weight is self._found.head[1].weight)
        self.cache_room: int | None = None
        """Bytes of the budget that a cache may take; None: there is no limit for it."""
        self._kept_as = (budget or Budget()).keep
        self._sizes = self._measured_sizes()
        self._split = self._divide(budget or Budget(), reserve)
        self.owned = frozenset(self._owned())
        self._slots: dict[tuple[object, ...], Slots] = {}
        self._passes, self._seconds, self._began = 0, 0.0, 0.0
        self._rate: float | None = None

    def _divide(self, budget: Budget, reserve: int | None) -> Split:
        gc.collect()
        self._host_room = 0
        here = self._device.type == "cpu"
        option, total = ("--host-memory", budget.host) if here else ("--device-memory", budget.device)
        reserve = max(RESERVE, (total or 0) // _TENTH) if reserve is None else reserve
        if total is not None and not budget.weights:
            self.cache_room = reserve // 2
        base = 0 if budget.weights else host.private_memory() + reserve
        besides = self._always() + (base if here or budget.weights else reserve)
        if not here:
            self._host_room = max(0, (budget.host or 0) - base)
            if budget.host is not None and budget.host < base:
                raise UsageError(f"--host-memory {budget.host} is too little: the process itself takes {base}",
                                 f"give at least {base}")
        room = _ALL if total is None else total - besides
        return split(self._sizes, max(room, self._sizes.least()) if budget.weights else room, option, besides,
                     limited=total is not None)

    def _cut(self, name: str) -> Cut:
        return self._shares.get(name) or {}

    def _measured_sizes(self) -> Sizes:
        head, table = self._found.head, self._found.table
        row = self._nbytes(*head) // self._checkpoint.shape(head[0], self._cut(head[0]))[0] if head else 0
        whole = self._nbytes(*head) if head else 0
        self._block_rows = max(1, BLOCK // row) if row else 0
        return sizes(self._found, whole, min(whole, self._block_rows * row),
                     self._nbytes(*table) if table and not self._tied else 0, self._choices(),
                     self._reading.size if self._kept_as == "stored" else None)

    def _nbytes(self, name: str, module: nn.Module) -> int:
        count = torch.Size(self._checkpoint.shape(name, self._cut(name))).numel()
        return count * self._dtype_of(module).itemsize

    def _dtype_of(self, module: nn.Module) -> torch.dtype:
        return self._dtype or cast(torch.Tensor, module.weight).dtype

    def _choices(self) -> int:
        """Experts that a token chooses: by the config, under any of the names that configs have for it."""
        config: Any = getattr(self._model, "config", None)
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        values = [getattr(text, name, None) for name in vocabulary().config.spellings()["top_k"]]
        return next((value for value in values if isinstance(value, int)), 1)

    def _always(self) -> int:
        """Bytes of what stays where the computation is."""
        moved = {part.name for layer in self._found.layers for part in layer.unit.parts}
        moved |= {part.name for each in self._found.experts for unit in each.units for part in unit.parts}
        moved |= {place[0] for place in (self._found.head, self._found.table) if place}
        total = 0
        for name, parameter in self._model.named_parameters():
            if name not in moved and parameter.is_meta and self._shares.get(name) is not None:
                shape = self._checkpoint.shape(name, self._cut(name))
                total += torch.Size(shape).numel() * (self._dtype or parameter.dtype).itemsize
        return total

    def _owned(self) -> set[str]:
        names = {part.name for layer in self._found.layers for part in layer.unit.parts}
        names |= {part.name for each in self._found.experts for unit in each.units for part in unit.parts}
        return names | {place[0] for place in (self._found.head, self._found.table) if place}

    def install(self, placing: Placing | None = None) -> None:
        """Read what stays, and hook the rest; `placing`: how parts of tensors become what modules take, None: as they
        are. All ranks that share tensors have to come here. Raises ReleaseError when it cannot be read."""
        self._placing = placing or Placing()
        self._store()
        self._layers()
        self._outer()
        self._experts()
        last = self._found.head[1] if self._found.head else self._found.layers[-1].module
        self._found.layers[0].module.register_forward_pre_hook(self._begin, prepend=True)
        last.register_forward_hook(self._end)
        self._reading.counts.reset()

    def _store(self) -> None:
        """The tiers of what stays as it is in the files, and what never leaves them."""
        if self._split.stored:
            level = Stored(self._checkpoint, self._split.stored, POLICIES[self._policy](), self._device)
            units = [layer.unit for number, layer in enumerate(self._found.layers)
                     if number not in self._split.layers and self._sizes.stored_layers]
            for work in [work for unit in units for work in self._reading.keep(unit, level)]:
                work.result()
            self._reading.levels.append(level)
        if self._host_room:
            self._reading.levels.append(Stored(self._checkpoint, self._host_room, POLICIES[self._policy](),
                                               torch.device("cpu")))

    def _layers(self) -> None:
        kept = [layer for number, layer in enumerate(self._found.layers) if number in self._split.layers]
        streamed = [layer for number, layer in enumerate(self._found.layers) if number not in self._split.layers]
        for layer in kept:
            self._keep(layer)
        if streamed:
            size = max(flat_bytes(layer.unit) for layer in streamed)
            store = Flat(size, self._split.staging, self._device)
            self._slots["layers",] = slots = Slots(self._split.staging, store, Recent(), self._reading)
            StreamedLayers(streamed, slots, self._placing).install()

    def _keep(self, layer: Layer) -> None:
        targets = [(part, torch.empty(part.shape, dtype=part.dtype, device=self._device)) for part in layer.unit.parts]
        for work in self._reading.start(layer.unit, targets):
            work.result()
        fill(layer.module, targets, self._placing)

    def _outer(self) -> None:
        table, head = self._found.table, self._found.head
        if head and self._split.head:
            weight = self._whole(*head)
            if self._tied and table:
                table[1]._parameters["weight"] = weight
        elif head:
            units = self._finder.rows(head[0], -2, self._block_rows)
            self._slots["head",] = slots = Slots(
                STAGES, Flat(flat_bytes(units[0]), STAGES, self._device), Recent(), self._reading)
            Blocks(head[1], units, slots, self._placing).install()
        if table and not (self._tied and self._split.head):
            if self._split.table and not self._tied:
                self._whole(*table)
            else:
                Rows(table[0], table[1], self._cut(table[0]), self._checkpoint, self._device,
                     self._dtype_of(table[1])).install()

    def _whole(self, name: str, module: nn.Module) -> nn.Parameter:
        cut = self._cut(name)
        made = torch.empty(self._checkpoint.shape(name, cut), dtype=self._dtype_of(module), device=self._device)
        self._checkpoint.fill(name, cut, made)
        put(module, "weight", self._placing.parameter(name, made))
        return cast(nn.Parameter, module._parameters["weight"])

    def _experts(self) -> None:
        stores: dict[tuple[object, ...], Stacked | Flat] = {}
        self._split = replace(self._split, slots={shapes: self._placing.least(count)
                                                  for shapes, count in self._split.slots.items()})
        together = self._placing.together
        for shapes, units in kinds(self._found.experts).items():
            count = self._split.slots[shapes]
            stores[shapes] = Stacked(units[0], count, self._device) if shapes[0] else Flat(
                flat_bytes(units[0]), count, self._device)
            self._slots[shapes] = Slots(count, stores[shapes], POLICIES[self._policy](), self._reading, alike=together)
        of = [_kind(each) for each in self._found.experts]
        way = "none" if together and self._way == "tried" else self._way  # each rank has seconds of its own
        self._foresight = Foresight(self._found.experts, [self._slots[kind] for kind in of], way)
        for number, (found, kind) in enumerate(zip(self._found.experts, of, strict=True)):
            store = stores[kind]
            if isinstance(store, Stacked):
                StackedExperts(number, found, self._slots[kind], store, self._foresight, self._placing).install()
            else:
                ListedExperts(number, found, self._slots[kind], self._foresight, self._placing).install()

    def _begin(self, *_: Any) -> None:
        if self._from_disk:
            self.drop_cache()
        self._reading.time += 1
        self._began = time.perf_counter()

    def _end(self, *_: Any) -> None:
        seconds = time.perf_counter() - self._began
        self._seconds += seconds
        self._foresight.passed(seconds)
        self._passes += 1

    def drop_cache(self) -> None:
        """Let the system forget what it keeps of the files, where it can."""
        for number in range(len(self._checkpoint.files.names)):
            self._checkpoint.files.forget(number)

    def measure(self, seconds: float = 1.0) -> float:
        """Bytes a second of reads of single experts, or layers, by the same threads with nothing else going on."""
        drop = self.drop_cache if self._from_disk else lambda: None
        self._rate = rate = bandwidth(self._found, self._reading, self._device, seconds, drop)
        return rate

    def measured(self) -> None:
        """`measure`, if it was not done before and anything had to be read."""
        if self._rate is None and self._reading.counts.needed_bytes:
            self.measure(_BRIEFLY)

    @property
    def trace(self) -> list[list[Sequence[int]]]:
        """The experts of each layer, for each of the last passes since the last `reset`; see `replay`."""
        return list(self._foresight.trace)

    def reset(self) -> None:
        """Begin to count anew."""
        self._reading.counts.reset()
        self._foresight.trace.clear()
        self._passes, self._seconds = 0, 0.0

    def statistics(self) -> TierRecord:
        """Since the last `reset`."""
        counts = vars(self._reading.counts)
        return TierRecord(
            passes=self._passes, kept=self.kept, slots=sum(self._split.slots.values()),
            experts=sum(len(each.units) for each in self._found.experts), policy=self._policy,
            foresight=self._foresight.way,
            seconds=self._seconds, bandwidth=self._rate, source="disk" if self._from_disk else "page cache",
            repaired=self._checkpoint.repaired, **counts)

    @property
    def kept(self) -> dict[str, int]:
        """Bytes in memory by what they are for; see TierRecord."""
        layers = self._sizes.layers
        blocks = 0 if self._split.head else STAGES * self._sizes.block
        kept = {"layers": sum(size for number, size in enumerate(layers) if number in self._split.layers),
                "staging": self._split.staging * max(layers) + blocks,
                "head": self._sizes.head if self._split.head else 0,
                "table": self._sizes.table if self._split.table else 0,
                "experts": sum(count * self._sizes.experts[shapes][0] for shapes, count in self._split.slots.items()),
                "stored": sum(level.nbytes for level in self._reading.levels)}
        return {name: size for name, size in kept.items() if size}

    def close(self) -> None:
        """End the reads. The model cannot run any more where something is not in memory."""
        self._reading.close()


def _kind(found: Experts) -> tuple[object, ...]:
    return (found.packed, next(unit for unit in found.units if unit.parts).shapes)
