"""What one rank does with its assignment, pass by pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
import transformers

from dayzero.backends import host
from dayzero.units import format_bytes

from . import generate as generation
from .assignment import BYTES, Assignment, Pass, PassResult, RankResult, share
from .dump import dump
from .gradients import gradients, small_batch
from .load import Loaded, blueprint, check_split, load
from .memory import PeakSampler, release_unused
from .mesh import Mesh
from .space import saving

Say = Callable[[str], None]


def work(assignment: Assignment, mesh: Mesh, dumps: Path, say: Say) -> RankResult:
    """All passes. Raises NotPossible when the model or the layout cannot be run."""
    root, events = Path(assignment.root), []
    plan = blueprint(root)
    plan.check(assignment.layout)
    results = []
    for item in assignment.passes:
        rank = _Rank(assignment, mesh, dumps, say, plan.parameters)
        affordable = rank.affordable(item)
        if not affordable.idle:
            results.append(rank.run(affordable))
        events += rank.events
        del rank
        release_unused()
    facts = {"torch": str(torch.__version__), "transformers": str(transformers.__version__),
             "threads of a rank": str(torch.get_num_threads())}
    return RankResult(rank=mesh.place.rank, device="cpu", passes=tuple(results), events=tuple(dict.fromkeys(events)),
                      environment=facts)


class _Rank:
    """One pass of one rank."""

    def __init__(self, assignment: Assignment, mesh: Mesh, dumps: Path, say: Say, parameters: int) -> None:
        self.assignment, self.mesh, self.dumps, self._say, self.parameters = assignment, mesh, dumps, say, parameters
        place = mesh.place
        numbers = share(place.replica, place.layout.dp, len(assignment.prompts))
        self.prompts = [(number, assignment.prompts[number]) for number in numbers]
        self.events: list[str] = []
        self.phase = ""

    def affordable(self, item: Pass) -> Pass:
        """The pass; one that takes gradients becomes an event when the weights of all ranks do not fit."""
        if not item.gradients:
            return item
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
            loaded = load(Path(self.assignment.root), self.mesh.place.layout, item.dtype)
            self.note(loaded.unused)
            self.note(check_split(self.mesh.place.layout, loaded.parameters, self.parameters))
            first, steps = self.generate(item, loaded) if self.prompts else ([], [])
        digest = self.dump(item, loaded) if item.dump else ""
        if item.gradients:
            self.gradients(loaded)
        return PassResult(
            dtype=item.dtype, layers=loaded.layers, parameters=loaded.parameters, weight_bytes=loaded.weight_bytes,
            parameters_whole=self.parameters, load_seconds=loaded.seconds, base_private_bytes=sampler.base,
            peak_private_bytes=sampler.peak, peak_during=sampler.during, first_token_s=tuple(first),
            step_s=tuple(second for each in steps for second in each.seconds),
            step_tokens=tuple(count for each in steps for count in each.tokens),
            outputs=tuple(steps[0].outputs) if steps else (), digests=tuple(each.digest for each in steps),
            dump_digest=digest)

    def generate(self, item: Pass, loaded: Loaded) -> tuple[list[float], list[generation.Steps]]:
        """(time to first token of each prompt, every repetition)."""
        first, steps = [], []
        if item.first_tokens:
            self.say("timing first tokens")
            first = generation.first_token_seconds(loaded.model, self.prompts)
        for repetition in range(item.generate):
            self.say(f"generating, {repetition + 1} of {item.generate}")
            torch.manual_seed(self.assignment.seed)
            steps.append(generation.generate(loaded.model, self.prompts, batch=self.assignment.batch,
                                             max_new_tokens=self.assignment.max_new_tokens))
        return first, steps

    def dump(self, item: Pass, loaded: Loaded) -> str:
        """Digest of what was dumped."""
        self.say(f"dumping {item.dtype}")
        place = self.mesh.place
        path = self.dumps / f"{item.dtype}-rank-{place.rank}.safetensors" if place.first_of_tp else None
        with saving(self.dumps):
            return dump(loaded.model, self.prompts, path, last_stage=place.stage == place.layout.pp - 1)

    def gradients(self, loaded: Loaded) -> None:
        """Of the batch that all layouts share."""
        self.say("taking gradients")
        batch = small_batch(self.assignment.prompts, self.assignment.gradient_rows)
        with saving(self.dumps):
            gradients(loaded.model, batch, self.mesh,
                      self.dumps / f"gradients-rank-{self.mesh.place.rank}.safetensors")

    def say(self, text: str) -> None:
        """What is being done now."""
        self.phase = text
        self._say(text)

    def note(self, event: str) -> None:
        """Something that deserves to be known; empty text is nothing."""
        if event:
            self.events.append(event)
