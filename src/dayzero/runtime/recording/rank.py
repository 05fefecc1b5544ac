"""One rank's part of recording a release: every prompt through the model, into the golden dumps that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from dayzero.errors import NotPossible
from dayzero.runtime.assignment import Assignment, RankResult, Record, share
from dayzero.runtime.building import blueprint
from dayzero.runtime.load import load
from dayzero.runtime.memory import release_unused
from dayzero.runtime.pipeline.part import Call
from dayzero.runtime.rank import Rank
from dayzero.runtime.seat import Seat
from dayzero.runtime.sharding import Mesh, whole
from dayzero.schema.golden import Kind

from .context import Recording, record
from .kinds import kinds, selected
from .paged import Paged
from .sampling import Sampling
from .strips import ROWS

Say = Callable[[str], None]
ENGINE, LIBRARY = "dayzero", "transformers"


def work(assignment: Assignment, mesh: Mesh, seat: Seat, say: Say) -> RankResult:
    """All dumps, on a device. Raises NotPossible when the model, the layout or what is asked of them cannot be run."""
    every = _Every.of(Path(assignment.root), own=assignment.own)
    for each in assignment.record:  # refused before any weight is read
        selected(every.model, each.modules, each.layers, every.found)
    for dtype in dict.fromkeys(each.dtype for each in assignment.record):
        say(f"loading {dtype}")
        run = _Run(assignment, mesh, seat, dtype, every)
        for number, each in enumerate(assignment.record):
            if each.dtype == dtype:
                say(f"recording {number + 1} of {len(assignment.record)}")
                run.record(each)
        del run
        release_unused()
    return RankResult(rank=mesh.place.rank, device=str(seat.device), passes=())


class _Every(NamedTuple):
    """The whole model, without weights, whatever of it a rank holds."""

    model: Any
    found: dict[str, Kind]
    """What each module is."""

    @classmethod
    def of(cls, root: Path, *, own: bool) -> _Every:
        """Of a release."""
        model = blueprint(root, own=own).model
        return cls(model, kinds(model))

    def known(self, model: Any) -> dict[str, Any]:
        """See `known`."""
        classes = {name: type(module) for name, module in self.model.named_modules()}
        return {"found": self.found, "without": frozenset(
            name for name, module in model.named_modules() if type(module) is not classes.get(name, type(module)))}


class _Run:
    """The model in one dtype."""

    def __init__(self, assignment: Assignment, mesh: Mesh, seat: Seat, dtype: str, every: _Every) -> None:
        self.assignment, self.mesh, self.seat, self._every = assignment, mesh, seat, every
        root, place = Path(assignment.root), mesh.place
        self.rank: Rank | None = None
        self.numbers = list(share(place.replica, place.layout.dp, len(assignment.prompts)))
        if assignment.plain:
            self.model = load(root, dtype).model.to(seat.device)
            return
        self.rank = Rank(root, dtype, own=assignment.own, threads=torch.get_num_threads(),
                         budget=assignment.budget(place.rank), device=seat.device)
        self.rank.prepare(place.layout, place.rank, assignment.stages or None)
        self.rank.join(mesh)
        self.model = self.rank.model

    def record(self, asked: Record) -> None:
        """One dump."""
        torch.manual_seed(self.assignment.seed)
        sampling = Sampling(asked.rows, asked.columns, self.assignment.seed)
        paged = self._paged(asked)
        with perturbed(self.model, asked.roundoff, asked.draw), record(
                self.model, Path(asked.folder), modules=asked.modules, layers=asked.layers, mode=asked.mode,
                sampling=sampling, gradients=asked.gradients, at_once=False, seed=self.assignment.seed,
                layout=self.mesh.place.layout, rank=self.mesh.place.rank, root=Path(self.assignment.root),
                terms=self._terms, rows=paged.rows if paged else None, weights=ROWS,
                **self._every.known(self.model),
                engine=LIBRARY if self.assignment.plain else ENGINE) as recording:
            if asked.gradients:
                self._backward(recording)
            else:
                with torch.no_grad():
                    paged.run() if paged else self._forward(asked, recording)
                with recording.paused():
                    self._settle()

    def _paged(self, asked: Record) -> Paged | None:
        """The serving engine, made before anything is recorded: it tries out what a call takes."""
        if not asked.paged or self.rank is None:
            return None
        every = self.assignment.prompts
        free = None if self.seat.device.type == "cpu" else self.seat.free
        return Paged(self.rank, {number: every[number] for number in self.numbers}, every, budget=asked.paged,
                     decode=asked.decode, free=free)

    def _terms(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Replicas each have some of the sequences, and stages may hold one and the same parameter."""
        layout, names = self.mesh.place.layout, self.rank.first_names if self.rank is not None else {}
        first = names.get(name, name)
        tied = layout.pp > 1 and sum(each == first for each in names.values()) > 1
        return first, (*(("dp",) if layout.dp > 1 else ()), *(("pp",) if tied else ()))

    def _ids(self, number: int) -> torch.Tensor:
        """[1, tokens] of one sequence."""
        return torch.tensor([self.assignment.prompts[number]], device=self.seat.device)

    def _settle(self) -> None:
        if self.rank is not None:
            self.rank.settle()

    def _forward(self, asked: Record, recording: Recording) -> None:
        for number in self.numbers:
            ids = self._ids(number)
            cut = ids.shape[1] - min(asked.decode, ids.shape[1] - 1)
            recording.expect([number])
            more: dict[str, Any] = {}
            output = self.model(input_ids=ids[:, :cut], use_cache=cut < ids.shape[1])
            for at in range(cut, ids.shape[1]):
                more = cache_of(output)
                output = self.model(input_ids=ids[:, at:at + 1], use_cache=True, **more)

    def _backward(self, recording: Recording) -> None:
        """Of the sum of all tokens' losses over the number of tokens of all replicas: their gradients add up."""
        pipeline = self.rank.pipeline if self.rank is not None else None
        if self.mesh.place.together > 1 or (self.rank is not None and self.rank.lists_experts):
            raise NotPossible(f"no gradients with {self.mesh.place.layout.text}: ranks hold different experts",
                              "record them with another layout")
        if pipeline is not None and self.seat.staged:
            raise NotPossible(f"no gradients of stages on {self.seat.device.type} devices: they send through the host",
                              "record them with another layout")
        tokens = sum(len(each) - 1 for each in self.assignment.prompts)

        def loss(logits: Any, ids: torch.Tensor) -> torch.Tensor:
            if pipeline is not None:  # no rank runs the whole model, which would have given them
                recording.recorder.take("", "logits", "logits", logits)
            return functional.cross_entropy(whole(logits)[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten(),
                                            reduction="sum") / max(1, tokens)

        for number in self.numbers:
            ids = self._ids(number)
            recording.expect([number])
            if pipeline is None:
                torch.autograd.backward(loss(self.model(input_ids=ids, use_cache=False).logits, ids))
            else:
                with recording.within({"input_ids": ids}):
                    pipeline.backward([Call(ids, {"use_cache": False})], loss, ids)
        recording.gradients()
        for parameter in self.model.parameters():
            parameter.grad = None


def known(model: Any, root: Path, *, own: bool = False) -> dict[str, Any]:
    """What `record` has to be told of a rank's model: `found`, what each module is in the whole model, and `without`,
    modules that only stand for some that other ranks have."""
    return _Every.of(root, own=own).known(model)


def cache_of(output: Any) -> dict[str, Any]:
    """The cache that a model gave, by the name of the argument that takes it."""
    for name in ("cache", "past_key_values", "cache_params"):
        if name in output and output[name] is not None:
            return {name: output[name]}
    raise NotPossible("the model gives no cache, so nothing can be decoded with one", "leave out --decode")


@contextmanager
def perturbed(model: Any, roundoff: float, draw: int) -> Iterator[None]:
    """What the embedding gives is multiplied by 1 + `roundoff` times random numbers from -1 to 1, drawn by the seed
    `draw`: the same ones on all ranks."""
    if not roundoff:
        yield
        return
    generator = torch.Generator().manual_seed(draw)

    def change(_module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(output.shape, generator=generator, dtype=torch.float32).mul_(2).sub_(1)
        return (output * (1 + roundoff * noise.to(output.device))).to(output.dtype)

    handle = model.get_input_embeddings().register_forward_hook(change)
    try:
        yield
    finally:
        handle.remove()
