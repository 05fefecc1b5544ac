"""The reference: one process that holds the whole model, once in f32 and once in the dtype of the run.

The second pass tells how far the dtype alone moves the values; a sharded run may be `FACTOR` times as far. It also
tells how much the model makes of a rounding error, and so what two runs in f32 may differ by. Of an f32 run it is in
bf16.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np

from dayzero.backends import host
from dayzero.errors import NotPossible, StoreError
from dayzero.floats import roundoff
from dayzero.progress import Progress
from dayzero.runtime.assignment import BYTES, Assignment, Generated, Pass
from dayzero.runtime.dumps import Dump, Sketches
from dayzero.runtime.launch import launch
from dayzero.schema import Layout, LayoutRun, Release, RunRecord, from_json
from dayzero.units import format_bytes

from .measure import FAR, Distance, distance, margin_error

FACTOR = 2.0
"""A sharded run adds its terms in another order: its rounding errors are other ones of the same size."""


@dataclass(frozen=True)
class Reference:
    """What the reference put out, and the tolerances that follow."""

    dump: Dump
    generated: dict[int, Generated]
    sketches: Sketches
    dtype: str
    """dtype of the run."""
    coarse: str
    """dtype of the second pass."""
    own: dict[str, Distance]
    """For each place: how far one process in the coarse dtype is from f32."""
    margin_error: float
    """Largest error, of one process in the run's dtype, of how far the likeliest token's logit is above the
    runner-up's; NaN when logits are not numbers."""
    forward_sum: int
    """Most terms that one value of the layers is the sum of."""
    backward_sum: int
    """Most terms that one value of a gradient is the sum of."""

    @property
    def tolerance_source(self) -> str:
        """Where `tolerance` comes from."""
        if self.dtype == "f32":
            return self.exact_source
        return f"twice the distance of one process in {self.dtype} from f32, and at least the roundoff of {self.dtype}"

    def tolerance(self, place: str) -> float:
        """Largest relative L2 of a place that passes, in the dtype of the run."""
        if self.dtype == "f32":
            return self.exact(place)
        return max(FACTOR * self._own(place), roundoff(self.dtype))

    def exact(self, place: str) -> float:
        """Largest relative L2 of a place that passes in f32. Adding n terms up in another order makes a relative error
        of sqrt(n) u (Higham and Mary 2019, "A new approach to probabilistic rounding error analysis"); until the place
        it grows by as much as the error of the coarse dtype does, which is counted in roundoffs of that dtype."""
        return roundoff("f32") * sqrt(self.forward_sum) * self._growth(place)

    @property
    def exact_source(self) -> str:
        """Where `exact` comes from."""
        return (f"f32 roundoff 2^-24 times sqrt({self.forward_sum}), the longest sum (Higham and Mary 2019), times the "
                f"roundoffs, at least one, that one process in {self.coarse} is off there")

    @property
    def backward(self) -> float:
        """Largest relative L2 of a gradient that passes: as `exact`, to the logits and as far back."""
        return 2 * roundoff("f32") * sqrt(self.backward_sum) * self._growth("logits")

    @property
    def backward_source(self) -> str:
        """Where `backward` comes from."""
        return (f"twice, for forward and backward, f32 roundoff 2^-24 times sqrt({self.backward_sum}), the longest sum "
                f"(Higham and Mary 2019), times the roundoffs that one process in {self.coarse} is off in the logits")

    def _growth(self, place: str) -> float:
        """In how many roundoffs the coarse dtype is off; at least one."""
        return max(self._own(place) / roundoff(self.coarse), 1.0)

    def _own(self, place: str) -> float:
        """0 where the coarse dtype gives no number: that is no measure for anything."""
        found = self.own[place].relative_l2
        return found if found < FAR else 0.0

    @property
    def margin_tolerance(self) -> float:
        """Largest margin that the dtype can turn round; NaN when logits are not numbers."""
        return FACTOR * (self.margin_error + self.own["logits"].largest * self.exact("logits"))


def run_reference(source: Release, record: RunRecord, folder: Path, place: str, *, limit_s: float,
                  progress: Progress) -> Reference:
    """Run it on the very token ids of the record; files go to `folder`/`place`/reference."""
    asked = assignment_of(record.runs[0], folder)
    sketches = [Sketches(folder / run.dump) for run in record.runs]
    dtype = record.runs[0].dtype
    coarse = "bf16" if dtype == "f32" else dtype
    passes = (Pass(dtype="f32", generate=1, dump=True, gradients=any(each.values for each in sketches)),
              Pass(dtype=coarse, dump=True))
    assignment = Assignment(
        root=str(Path(str(source.root)).resolve()), layout=Layout(), passes=passes, prompts=asked.prompts,
        max_new_tokens=asked.max_new_tokens, batch=len(asked.prompts), seed=asked.seed,
        gradient_rows=asked.gradient_rows, plain=True)
    _check_memory(source)
    where = folder / place / "reference"
    progress.update("running the reference")
    launched = launch(assignment, where, limit_s=limit_s, progress=progress)
    dump, same = Dump(where / "dump", "f32"), Dump(where / "dump", coarse)
    own = {name: distance((same.read(prompt, name), dump.read(prompt, name)) for prompt in dump.prompts)
           for name in dump.places}
    forward, backward = _longest_sums(source)
    return Reference(
        dump=dump, generated={each.prompt: each for each in launched.ranks[0].passes[0].outputs},
        sketches=Sketches(where / "dump"), dtype=dtype, coarse=coarse, own=own,
        margin_error=0.0 if dtype == "f32" else _margin_error(same, dump), forward_sum=forward, backward_sum=backward)


def _longest_sums(source: Release) -> tuple[int, int]:
    """(most terms in a sum of the layers, of their gradients): the widest matrix, and with the vocabulary."""
    layers = [size for group in source.tensors.groups for size in group.shape if "{L}" in group.pattern]
    forward = max([source.model.hidden_size, *layers])
    return forward, max(forward, source.model.vocab_size)


def _check_memory(source: Release) -> None:
    """Raises NotPossible when the weights in f32 do not fit into this machine's memory."""
    need, have = source.model.parameters * BYTES["f32"], host.available_memory()
    if need > have:
        raise NotPossible(f"the reference takes {format_bytes(need)} in f32 and {format_bytes(have)} are free here",
                          "check it on a machine with more memory")


def _margin_error(same: Dump, truth: Dump) -> float:
    """Over all tokens of all prompts."""
    return float(np.max([margin_error(same.read(prompt, "logits"), truth.read(prompt, "logits"))
                         for prompt in truth.prompts]))


def assignment_of(run: LayoutRun, folder: Path) -> Assignment:
    """What the run was told. Raises StoreError when it is gone or damaged."""
    path, again = (folder / run.dump).parent / "assignment.json", "run again with --from run --force"
    try:
        return from_json(path.read_bytes(), Assignment)
    except FileNotFoundError:
        raise StoreError(f"the dumps of {run.layout.text} are gone from {folder}", again) from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is damaged: {error}", again) from None
