"""What one rank does with its assignment, pass by pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers

from dayzero.backends import host
from dayzero.schema import TierRecord
from dayzero.units import format_bytes

from . import generate as generation
from .assignment import BYTES, Assignment, Pass, PassResult, RankResult, share
from .building import blueprint
from .dump import dump
from .gradients import gradients, small_batch
from .load import load
from .memory import PeakSampler, release_unused
from .rank import Held, Rank
from .seat import Seat
from .sharding import Mesh
from .space import saving
from .timeline import Timeline
from .warned import operators_warned

Say = Callable[[str], None]
_EMPTY_SPLIT = 0.95


def work(assignment: Assignment, mesh: Mesh, seat: Seat, dumps: Path, say: Say) -> RankResult:
    """All passes, on a device. Raises NotPossible when the model or the layout cannot be run."""
    events: list[str] = []
    parameters = blueprint(Path(assignment.root), own=assignment.own).parameters
    results = []
    with operators_warned() as warned:
        for item in assignment.passes:
            rank = _Rank(assignment, mesh, seat, dumps, say, parameters)
            affordable = rank.affordable(item)
            if not affordable.idle:
                results.append(rank.run(affordable))
            events += rank.events
            del rank
            release_unused()
    events += warned
    facts = {"torch": str(torch.__version__), "transformers": str(transformers.__version__),
             "threads of a rank": str(torch.get_num_threads())}
    return RankResult(rank=mesh.place.rank, device=str(seat.device), passes=tuple(results),
                      events=tuple(dict.fromkeys(events)), environment=facts)


class _Rank:
    """One pass of one rank."""

    def __init__(self, assignment: Assignment, mesh: Mesh, seat: Seat, dumps: Path, say: Say, parameters: int
                 ) -> None:
        self.seat = seat
        self.assignment, self.mesh, self.dumps, self._say, self.parameters = assignment, mesh, dumps, say, parameters
        place = mesh.place
        numbers = share(place.replica, place.layout.dp, len(assignment.prompts))
        self.prompts = [(number, assignment.prompts[number]) for number in numbers]
        self.events: list[str] = []
        self.phase = ""
        self.model: Any = None
        self.rank: Rank | None = None
        self.timeline = Timeline(rank=place.rank)

    def affordable(self, item: Pass) -> Pass:
        """The pass; one that takes gradients becomes an event when the weights of all ranks do not fit."""
        if not item.gradients:
            return item
        if self.assignment.budgets:
            self.note(f"no pass in {item.dtype}: weights are in tiers")
            return msgspec.structs.replace(item, gradients=False, dump=False)
        layout = self.mesh.place.layout
        need, have = self.parameters * BYTES[item.dtype] * layout.dp, host.available_memory()
        if self.mesh.all_agree(need < have):
            return item
        self.note(f"no pass in {item.dtype}: the weights in {item.dtype} take {format_bytes(need)} on this "
                  f"machine, which has {format_bytes(have)} free")
        return msgspec.structs.replace(item, gradients=False, dump=False)

    def run(self, item: Pass) -> PassResult:
        """Load, generate, dump, gradients: what is asked for, in this order."""
        torch.manual_seed(self.assignment.seed)
        sampler = PeakSampler(lambda: self.phase)
        with sampler:
            self.say(f"loading {item.dtype}")
            loaded = self.load(item)
            self.note(loaded.unused)
            self.note(self.split(loaded))
            self.timeline.reset()
            with self.timeline.span("compute", "generate"):
                first, steps = self.generate(item) if self.prompts else ([], [])
                self.settle()
            overlap, tiers = self.timeline.overlap(), self.tiers()
        digest = self.dump(item) if item.dump else ""
        self.settle()
        if item.gradients:
            self.gradients()
        return PassResult(
            dtype=item.dtype, layers=loaded.layers, parameters=loaded.parameters, weight_bytes=loaded.weight_bytes,
            parameters_whole=self.parameters, load_seconds=loaded.seconds, base_private_bytes=sampler.base,
            peak_private_bytes=sampler.peak, peak_during=sampler.during, first_token_s=tuple(first),
            step_s=tuple(second for each in steps for second in each.seconds),
            step_tokens=tuple(count for each in steps for count in each.tokens),
            outputs=tuple(steps[0].outputs) if steps else (), digests=tuple(each.digest for each in steps),
            dump_digest=digest, tiers=tiers, overlap=overlap)

    def load(self, item: Pass) -> Held:
        """This rank's share, or all of it by the library's own means."""
        root, place = Path(self.assignment.root), self.mesh.place
        if self.assignment.plain:
            whole = load(root, item.dtype)
            self.model = whole.model
            return Held(layers=whole.layers, parameters=whole.parameters, weight_bytes=whole.weight_bytes,
                        bytes_read=whole.weight_bytes, seconds=whole.seconds, unused=whole.unused)
        rank = Rank(root, item.dtype, own=self.assignment.own, threads=torch.get_num_threads(),
                    budget=self.assignment.budget(place.rank), device=self.seat.device, timeline=self.timeline)
        held = rank.prepare(place.layout, place.rank, self.assignment.stages or None)
        rank.join(self.mesh)
        self.rank, self.model = rank, rank.model
        return held

    def tiers(self) -> TierRecord | None:
        """What keeping weights in lower tiers cost until now."""
        found = self.rank.moved() if self.rank else None
        self.note(found.told if found else "")
        return found

    def split(self, held: Held) -> str:
        """A warning when tensor parallelism or stages split next to nothing."""
        layout, whole = self.mesh.place.layout, self.parameters
        if layout.tp * layout.pp == 1 or held.parameters < _EMPTY_SPLIT * whole:
            return ""
        return f"{layout.text} splits little: a rank holds {held.parameters / whole:.0%} of all parameters"

    def settle(self) -> None:
        """Take part in what replicas that share experts still compute."""
        if self.rank is not None:
            self.rank.settle()

    def generate(self, item: Pass) -> tuple[list[float], list[generation.Steps]]:
        """(time to first token of each prompt, every repetition)."""
        first, steps = [], []
        if item.first_tokens:
            self.say("timing first tokens")
            first = generation.first_token_seconds(self.model, self.prompts)
        for repetition in range(item.generate):
            self.say(f"generating, {repetition + 1} of {item.generate}")
            torch.manual_seed(self.assignment.seed)
            steps.append(generation.generate(self.model, self.prompts, batch=self.assignment.batch,
                                             max_new_tokens=self.assignment.max_new_tokens))
        return first, steps

    def dump(self, item: Pass) -> str:
        """Digest of what was dumped."""
        self.say(f"dumping {item.dtype}")
        place = self.mesh.place
        path = self.dumps / f"{item.dtype}-rank-{place.rank}.safetensors" if place.first_of_tp else None
        with saving(self.dumps):
            return dump(self.model, self.prompts, path, last_stage=place.stage == place.layout.pp - 1)

    def gradients(self) -> None:
        """Of the batch that all layouts share."""
        if self.mesh.place.together > 1:
            self.note(f"no gradients: replicas share experts ({self.mesh.place.layout.text})")
            return
        if self.rank and self.rank.pipeline and self.seat.staged:
            self.note(f"no gradients: stages on {self.seat.device.type} devices send through the host's memory")
            return
        self.say("taking gradients")
        if self.rank and self.rank.lists_experts:
            self.note(f"no gradients: ranks hold different modules of experts ({self.mesh.place.layout.text})")
            return
        batch = small_batch(self.assignment.prompts, self.assignment.gradient_rows).to(self.seat.device)
        with saving(self.dumps):
            gradients(self.model, self.rank.pipeline if self.rank else None, batch, self.mesh,
                      self.dumps / f"gradients-rank-{self.mesh.place.rank}.safetensors",
                      self.rank.first_names if self.rank else None, self.rank.complete if self.rank else None)

    def say(self, text: str) -> None:
        """What is being done now."""
        self.phase = text
        self._say(text)

    def note(self, event: str) -> None:
        """Something that deserves to be known; empty text is nothing."""
        if event:
            self.events.append(event)
