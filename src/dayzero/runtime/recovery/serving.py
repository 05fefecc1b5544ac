"""What a member does with the runtime: holds the share of its place, and serves with an engine.

All ranks of a replica run the same engine on the same requests, so any of them can be lost.
"""

from __future__ import annotations

import gc
import sys
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

import msgspec
import torch
import transformers
from torch._C._distributed_c10d import FileStore

from dayzero.errors import DayzeroError, NotPossible
from dayzero.runtime.memory import PeakSampler
from dayzero.runtime.rank import Held, Rank
from dayzero.runtime.seat import Seat, take_seat
from dayzero.runtime.sharding import Mesh
from dayzero.runtime.timeline import Timeline
from dayzero.runtime.timeline.shares import together
from dayzero.runtime.warned import operators_warned
from dayzero.schema import Layout, Overlap, from_json

from .finite import watch
from .job import TIMELINES, Job
from .messages import Join, Share
from .roles import Orders, Pace, Told
from .rounds import Rounds

_READERS = 2
"""Threads that read weights, or more: while one waits for the disk, or for memory, another one goes on."""


class Runtime:
    """`Serving`, with the reference runtime."""

    def __init__(self, folder: Path, pace: Pace, *, likely: Layout | None = None) -> None:
        """`pace` is told of every layer of the place, which waits for nobody but tp peers. `likely`: nothing is to be
        done yet, so that what a place of this layout takes before it is known may be done now."""
        self.job, self._folder, self._pace = from_json((folder / "job.json").read_bytes(), Job), folder, pace
        torch.set_num_threads(self.job.threads)
        self.rank = Rank(Path(self.job.root), self.job.dtype, own=self.job.own, partial=self.job.partial,
                         threads=max(self.job.threads, _READERS), verify=self.job.verify)
        self._place: tuple[Layout, int] | None = None
        """The one in which it has joined others,"""
        self._prepared: tuple[Layout, int] | None = None
        """and the one for which it could."""
        self._held: Held | None = None
        self._seat: Seat | None = None
        self._order: Join | None = None
        self._overlap: tuple[Overlap, ...] = ()
        self._doing = "importing"
        self._life = ExitStack()
        self._sampler = self._life.enter_context(PeakSampler(lambda: self._doing))
        self._warned = self._life.enter_context(operators_warned())
        self._chosen = ExitStack()
        """What was chosen of the backend, for the model as it is."""
        if likely is not None:
            self._foresee(likely)

    def _foresee(self, layout: Layout) -> None:
        with suppress(DayzeroError, NotPossible):  # told when the place is taken
            self.rank.foresee(layout)
        _keep()

    def load(self, order: Join) -> int:
        """See Serving."""
        self._order, place = order, (order.layout, order.rank)
        if place in (self._place, self._prepared):
            return 0
        if self._held is not None:
            gc.unfreeze()  # the model of the place before
        self._doing, self._place, self._prepared = "loading", None, None
        self.rank.mesh = None
        self._chosen.close()
        self._begin(order)
        with self.rank.timeline.span("load", "weights"):
            self._held = held = self.rank.prepare(*place, self.job.stages.get(order.layout.text))
        watch(self.rank.model, held.layers, self._pace)
        _keep()
        self._prepared = place
        return held.bytes_read

    def _meet(self) -> None:
        """Join the process groups: all others hold what they need and do the same."""
        assert self._order is not None and self._seat is not None
        order, timeout = self._order, timedelta(seconds=self.job.timeout_s)
        store, place = FileStore(order.store, order.layout.world_size), (order.layout, order.rank)
        if self._place == place:
            self.rank.rejoin(store, timeout)
            return
        mesh = Mesh(*place, library=self._seat.library, staged=self._seat.staged)
        try:
            mesh.join(store, timeout=timeout)
            self._prepared = None
            self.rank.join(mesh)
        except BaseException:
            mesh.abort()
            raise
        backend, wanted = self._seat.backend, msgspec.structs.asdict(self.job.chosen)
        wanted["linear"] = wanted["linear"] or backend.choices().get("linear", ("",))[-1]
        self._chosen.enter_context(backend.optimizations(self.rank.model, **wanted))
        self._place = place

    def _begin(self, order: Join) -> None:
        """What a new place has of its own beside weights."""
        self._seat = take_seat(self.job.backend, order.layout, order.rank)
        self.rank.device, self.rank.budget = self._seat.device, self.job.budget(order.rank)
        self.rank.timeline.close()
        path = self._folder / TIMELINES.replace("*", f"{order.epoch}-{order.rank}") if self.job.timeline else None
        self.rank.timeline = Timeline(path, rank=order.rank)
        self._overlap = ()

    @torch.no_grad()
    def serve(self, orders: Orders, told: Told) -> None:
        """See Serving."""
        self._meet()
        self._doing = "generating"
        Rounds(self, orders, told).run()

    def free(self) -> int | None:
        """Bytes for the cache where the device has memory of its own; None: the host's."""
        assert self._seat is not None
        return None if self.rank.device.type == "cpu" else self._seat.free

    def counted(self) -> None:
        """Sum up what was hidden so far."""
        self._overlap = together([self._overlap, self.rank.timeline.overlap()])
        self.rank.timeline.reset()

    def share(self) -> Share:
        """The place so far."""
        assert self._held is not None and self._seat is not None
        held, sampler = self._held, self._sampler
        self.counted()
        on = str(self.rank.device)
        taken = self._seat.backend.memory(self._seat.index).peak() if self.rank.device.type != "cpu" else 0
        tiers = self.rank.moved()
        events = [text for text in (held.left_out, held.unused, tiers.told if tiers else "", *self._warned) if text]
        facts = {"torch": str(torch.__version__), "transformers": str(transformers.__version__),
                 "threads of a rank": str(torch.get_num_threads())}
        return Share(
            device=on, layers=held.layers, parameters=held.parameters, weight_bytes=held.weight_bytes,
            load_seconds=held.seconds, base_private_bytes=sampler.base, peak_private_bytes=sampler.peak,
            peak_device_bytes=taken, peak_during=sampler.during, events=tuple(events), environment=facts,
            tiers=tiers, overlap=self._overlap)

    def leave(self) -> None:
        """See Serving. The model stays as it is, for the same place in the next epoch."""
        self.rank.drop()

    def close(self) -> None:
        """See Serving."""
        self.rank.timeline.close()
        sys.stdout.flush()


def _keep() -> None:
    """What is there by now stays, the libraries above all: it need not be looked through whenever groups are left."""
    gc.collect()
    gc.freeze()
