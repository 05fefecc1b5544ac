"""One rank: holds its share of a release, and runs the model together with the other ranks.

    rank = Rank(root, "bf16")
    rank.prepare(layout, number)        build, cut into stages, plan shares, read what is not held yet
    rank.join(Mesh(layout, number).join(store))
    rank.model(...)                     gives the logits on every rank, on every layout
    rank.leave()

Weights stay when groups are left: a rank can take the same place again, or another one, and reads only what is new.
"""

from __future__ import annotations

import gc
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dayzero.errors import NotPossible, StageError, UsageError
from dayzero.schema import Budget, Layout, TierRecord

from . import stand_ins
from .assignment import DTYPES
from .building import blueprint, decoder_layers
from .building.shortened import layers_there, refuse_part, shorten
from .loading import Checkpoint, Cut
from .memory import release_unused
from .pipeline import Flow, Part, Pipeline, even_split, observe
from .pipeline.joined import joined
from .sharding import Lockstep, Mesh, Shares, install, plan_shares, whole
from .sharding.placing import InParts, to_device
from .sharding.rules import derive
from .timeline import OFF, Timeline

if TYPE_CHECKING:
    from .sharding.rules import Rules
    from .tiers import Tiers

Stages = tuple[tuple[int, int], ...]
"""[first layer, end) of each pipeline stage."""


@dataclass(frozen=True)
class Held:
    """What a rank holds."""

    layers: tuple[int, ...]
    """Decoder layers."""
    parameters: int
    """Elements."""
    weight_bytes: int
    """Bytes of them."""
    bytes_read: int
    """What was read for it from files."""
    seconds: float
    """How long that took, with building the model."""
    unused: str
    """Which tensors of the files the model has no place for, in a few words; empty when it takes all."""
    left_out: str = ""
    """Which layers are not there, in a few words; empty when all are."""


@dataclass(frozen=True)
class _Ready:
    """A model that has been built for any place of a layout."""

    layout: Layout
    rules: Rules
    checkpoint: Checkpoint
    left_out: str


class Rank:
    """Not to be used by several threads."""

    def __init__(self, root: Path, dtype: str, *, own: bool = False, budget: Budget | None = None, threads: int = 4,
                 timeline: Timeline = OFF, device: torch.device | str = "cpu", partial: bool = False,
                 verify: bool = False) -> None:
        """`dtype`: bf16, f16 or f32; `own`: whether the release's own code is to run; `budget`: of its
        weights; either all ranks have one or none; `partial`: whether a release of which only the first layers are
        there is to be run as a model of those; `verify`: whether files are compared with their stated digests while
        they are read, and what tiers read later with what was verified."""
        self.root, self.dtype, self.own, self.budget = root, dtype, own, budget
        self.threads, self.timeline, self.device, self.partial = threads, timeline, torch.device(device), partial
        self.verify = verify
        self.model: Any = None
        """After `prepare`: with this rank's weights. After `join`: its forward gives the logits on every rank."""
        self.parameters = 0
        """Elements of all parameters of the whole model."""
        self.first_names: dict[str, str] = {}
        """Parameter of the whole model -> the first name that it has there; tied ones have several."""
        self.part: Part | None = None
        self.shares: Shares | None = None
        self.pipeline: Pipeline | None = None
        self.lockstep: Lockstep | None = None
        self.mesh: Mesh | None = None
        self.tiers: Tiers | None = None
        self._kernels = ExitStack()
        """What stands in for kernels that the release's own code calls and that this machine lacks."""
        self._checkpoint: Checkpoint | None = None
        self._flow: Flow | None = None
        self._ready: _Ready | None = None
        self._tensors: dict[str, tuple[Cut, torch.Tensor]] = {}

    def prepare(self, layout: Layout, rank: int, stages: Stages | None = None, *, fsdp: bool = False) -> Held:
        """Build the model for a place and read the part of its weights that is not held yet. `stages`: as even as
        layers can be shared out when nobody says how.

        Raises NotPossible for a layout that cannot be run, ReleaseError when the files do not fill the model.
        """
        started = time.perf_counter()
        ready, self._ready = self._ready, None
        if ready is None or ready.layout != layout:
            ready = self._build(layout)
        checkpoint = ready.checkpoint
        if layout.pp > 1:
            self._cut(layout, rank, stages)
        self.shares = plan_shares(self.model, layout, rank, rules=ready.rules, fsdp=fsdp)
        unused = checkpoint.check(frozenset(self.shares.cuts))
        release_unused()  # of what was run on trial
        read = self._read(checkpoint, self._wanted(checkpoint))
        checkpoint.close()  # tiers open files again
        own = dict(self.model.named_parameters())
        parts = [tensor for name, (_, tensor) in self._tensors.items() if name in own]
        return Held(
            layers=tuple(self.part.layers) if self.part else tuple(range(len(decoder_layers(self.model)))),
            parameters=sum(part.numel() for part in parts), weight_bytes=sum(part.nbytes for part in parts),
            bytes_read=read, seconds=time.perf_counter() - started, unused=unused, left_out=ready.left_out)

    def foresee(self, layout: Layout) -> None:
        """Do what `prepare` does for any place of the layout, and what is done once, so that it is quick when it comes.
        Raises as `prepare`."""
        self._ready = self._build(layout)
        if layout.pp > 1:
            self._observed()

    def _build(self, layout: Layout) -> _Ready:
        built = blueprint(self.root, self.dtype, own=self.own)
        self.model, self.parameters, self.part = built.model, built.parameters, None
        if self.own:
            self._kernels.close()
            self._kernels.enter_context(stand_ins.fallbacks(self.model))
        if self._checkpoint is not None:
            self._checkpoint.close()
        checkpoint, left_out = self._opened()
        rules = derive(self.model, layout)
        self.first_names = _first_names(self.model)
        return _Ready(layout, rules, checkpoint, left_out)

    def _opened(self) -> tuple[Checkpoint, str]:
        """The files of the model, which is shortened to the layers that are there if that is wanted, and what is said
        about the others."""
        checkpoint, said = Checkpoint(self.root, self.model, partial=self.partial), ""
        if checkpoint.missing and not self.partial:
            refuse_part(self.model, checkpoint.missing)
        if self.partial and (missing := {*checkpoint.missing, *checkpoint.incomplete}):
            count, said = layers_there(self.model, missing)
            shorten(self.model, count)
            self.parameters = sum(each.numel() for each in self.model.parameters())
            checkpoint.close()
            checkpoint = Checkpoint(self.root, self.model, partial=True)
        self._checkpoint = checkpoint
        return checkpoint, said

    def _cut(self, layout: Layout, rank: int, stages: Stages | None) -> None:
        flow = self._observed()
        if flow.layers < layout.pp:
            raise NotPossible(f"{flow.layers} layers cannot be shared out to {layout.pp} stages",
                              "choose a layout with fewer stages")
        stage = rank % (layout.tp * layout.pp) // layout.tp
        self.part = Part(self.model, flow, stages or even_split(flow.layers, layout.pp), stage)

    def _observed(self) -> Flow:
        if self._flow is None:
            self._flow = observe(self.model)
        return self._flow

    def _wanted(self, checkpoint: Checkpoint) -> dict[str, Cut]:
        """What this rank holds of each tensor, without those that tiers keep; of tied ones only the first."""
        assert self.shares is not None
        self._leave_tiers()
        if self.budget is not None:
            from .tiers import Tiers

            if self.shares.fsdp:
                raise NotPossible("replicas that share weights cannot keep them in tiers", "leave out one of the two")
            self.tiers = Tiers(self.model, checkpoint, self.shares.cuts, self.budget,
                               device=self.device, dtype=getattr(torch, DTYPES[self.dtype]), threads=self.threads,
                               timeline=self.timeline)
        kept = self.tiers.owned if self.tiers else frozenset()
        first = _first_names(self.model)
        return {name: cut for name, cut in self.shares.cuts.items() if first.get(name, name) == name
                and name not in kept}

    def _leave_tiers(self) -> None:
        if self.tiers is not None:
            self.tiers.close()
            self.tiers = None

    def moved(self) -> TierRecord | None:
        """What keeping weights in lower tiers cost until now, against how fast they can be read; None: all are in
        memory."""
        if self.tiers is None:
            return None
        self.tiers.measured()
        return self.tiers.statistics()

    def _read(self, checkpoint: Checkpoint, wanted: dict[str, Cut]) -> int:
        """Read what is not held yet, and let go of what is no longer wanted; bytes."""
        held = {name: self._tensors[name] for name, cut in wanted.items()
                if name in self._tensors and self._tensors[name][0] == cut}
        self._tensors = held
        new = {name: cut for name, cut in wanted.items() if name not in held}
        tensors = checkpoint.read(new, dtype=getattr(torch, DTYPES[self.dtype]), device=self.device,
                                  threads=self.threads, timeline=self.timeline, verify=self._verified(checkpoint))
        self._tensors |= {name: (new[name], tensor) for name, tensor in tensors.items()}
        return sum(checkpoint.bytes(name, cut) for name, cut in new.items())

    def _verified(self, checkpoint: Checkpoint) -> tuple[str, ...]:
        """Files to compare with their digests: together with the other ranks all of them; those that tiers read."""
        assert self.shares is not None
        if not self.verify:
            return ()
        if not checkpoint.digests:
            raise UsageError("no SHA-256 is stated for the release's files", "leave --verify out")
        if self.tiers is not None:
            return checkpoint.files_of(tuple(self.shares.cuts))
        place = self.shares.place
        return checkpoint.verifies(place.rank, place.layout.world_size)

    def join(self, mesh: Mesh) -> None:
        """Put the weights into the model and run together with the ranks of the mesh, which has been joined."""
        assert self.shares is not None
        self.mesh, self.lockstep = mesh, Lockstep(mesh, fsdp=self.shares.fsdp)
        self._agree()
        mesh.record(self.timeline)
        tensors = {name: tensor for name, (_, tensor) in self._tensors.items()}
        tensors |= {name: tensors[first] for name, first in _first_names(self.model).items() if first in tensors}
        if self.device.type != "cpu":
            to_device(self.model, self.device)
        if self.tiers is not None:
            self.tiers.install(InParts(self.shares, mesh))
        install(self.model, self.shares, tensors, mesh)
        self._connect()
        self.lockstep.attach(self.model)

    def _agree(self) -> None:
        """What ranks do together they do by the same cuts. Raises StageError, before one waits for another for ever."""
        assert self.mesh is not None and self.shares is not None
        if len(set(self.mesh.every((self.shares.rules.digest,)))) > 1:
            raise StageError("ranks have derived different cuts of the same weights", "this is a bug: please report it")

    def _connect(self) -> None:
        assert self.mesh is not None
        if self.part:
            self.pipeline = Pipeline(self.part, self.mesh.stages)
            joined(self.model, self.pipeline, self.mesh.stages)

    def rejoin(self, store: Any, timeout: timedelta) -> None:
        """In the same place with other ranks, after `drop`: the model is as it was."""
        assert self.mesh is not None
        self.mesh.join(store, timeout=timeout)
        self._agree()
        self._connect()

    def drop(self) -> None:
        """Close all connections without waiting for anybody, so that ranks that wait for this one get an error at
        once. The model is kept for `rejoin`."""
        if self.mesh is not None:
            self.pipeline = None
            vars(self.model).pop("forward", None)  # a stage's, which holds the pipeline
            self.mesh.abort()
        gc.collect()  # a group that somebody still holds keeps its connections

    def settle(self) -> None:
        """Take part in what other replicas still compute, until all of them come here."""
        if self.lockstep is not None and not self.lockstep.alone:
            with torch.no_grad():
                nothing = torch.zeros((1, 1), dtype=torch.long, device=self.device)
                self.lockstep.finish(lambda: self.model(input_ids=nothing))

    @property
    def lists_experts(self) -> bool:
        """Whether experts are modules one by one and some of them on other ranks."""
        assert self.shares is not None
        return self.shares.place.layout.ep > 1 and any(not each.packed for each in self.shares.rules.experts)

    def complete(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """A parameter's gradient, or whatever is cut as the parameter is, put together. All ranks have to ask."""
        assert self.shares is not None and self.mesh is not None
        together: torch.Tensor = whole(part)
        own = self.shares.rules.of(name)
        if own is not None and own.packed and len(together) < own.count:
            together = torch.cat(self.mesh.experts.gather(together))
        return together

    def leave(self, *, wait: bool = True) -> None:
        """Leave the groups, after all ranks have come here unless some are gone; weights are kept for another place,
        but the model is to be prepared again."""
        self._leave_tiers()
        if self.mesh is not None:
            self.mesh.leave(wait=wait)
        self.mesh = self.pipeline = self.lockstep = self.model = self.part = None


def _first_names(model: Any) -> dict[str, str]:
    first: dict[int, str] = {}
    return {name: first.setdefault(id(each), name) for name, each in model.named_parameters(remove_duplicate=False)}
