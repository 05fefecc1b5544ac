"""The reference: one process that holds the whole model, once in f32 and once in the dtype of the run.

The second pass tells how far the dtype alone moves the values; a sharded run may be `FACTOR` times as far.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path

from dayzero.backends import host
from dayzero.errors import NotPossible, StoreError
from dayzero.progress import Progress
from dayzero.runtime.assignment import BYTES, Assignment, Generated, Pass
from dayzero.runtime.dumps import Dump, Sketches
from dayzero.runtime.launch import launch
from dayzero.schema import Layout, LayoutRun, Release, RunRecord, from_json
from dayzero.units import format_bytes

from .measure import Distance, distance, margin_error

FACTOR = 2.0
"""A sharded run adds its terms in another order: its rounding errors are other ones of the same size."""
ROUNDOFF = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-24}
"""Largest relative error of rounding to nearest: significands of 8, 11 and 24 bits."""


@dataclass(frozen=True)
class Reference:
    """What the reference put out, and the tolerances that follow."""

    dump: Dump
    generated: dict[int, Generated]
    sketches: Sketches
    dtype: str
    own: dict[str, Distance]
    """For each place: how far one process in the run's dtype is from f32."""
    margin_error: float
    """Largest error, in the same process, of how far the likeliest token's logit is above the runner-up's."""
    layers: int
    longest_sum: int
    """Most terms that one value of the model is the sum of."""
    tolerance_source: str = field(init=False, default=(
        "twice the distance of a single process in the run's dtype from f32, and at least the roundoff of the dtype"))

    @property
    def summation_error(self) -> float:
        """Relative error that adding up in another order makes in f32: sqrt(n) u for a sum of n terms (Higham and
        Mary 2019, "A new approach to probabilistic rounding error analysis"), once for each layer."""
        return ROUNDOFF["f32"] * sqrt(self.longest_sum) * self.layers

    @property
    def summation_source(self) -> str:
        """Where `summation_error` comes from."""
        return (f"f32 roundoff 2^-24 times sqrt({self.longest_sum}), the longest sum, times {self.layers} layers "
                "(Higham and Mary 2019)")

    def tolerance(self, place: str) -> float:
        """Largest relative L2 of a place that passes."""
        floor = self.summation_error if self.dtype == "f32" else ROUNDOFF[self.dtype]
        return max(FACTOR * self.own[place].relative_l2, floor)

    @property
    def margin_tolerance(self) -> float:
        """Largest margin that the dtype can turn round."""
        return FACTOR * max(self.margin_error, self.own["logits"].largest * self.summation_error)


def run_reference(source: Release, record: RunRecord, folder: Path, place: str, *, limit_s: float,
                  progress: Progress) -> Reference:
    """Run it on the very token ids of the record; files go to `folder`/`place`/reference."""
    asked = _assignment(record.runs[0], folder)
    sketches = [Sketches(folder / run.dump) for run in record.runs]
    dtype = record.runs[0].dtype
    passes = (Pass(dtype="f32", generate=1, dump=True, gradients=any(each.values for each in sketches)),
              *([Pass(dtype=dtype, dump=True)] if dtype != "f32" else []))
    assignment = Assignment(
        root=str(Path(str(source.root)).resolve()), layout=Layout(), passes=passes, prompts=asked.prompts,
        max_new_tokens=asked.max_new_tokens, batch=len(asked.prompts), seed=asked.seed,
        gradient_rows=asked.gradient_rows)
    _check_memory(source)
    where = folder / place / "reference"
    progress.update("running the reference")
    launched = launch(assignment, where, limit_s=limit_s, progress=progress)
    dump = Dump(where / "dump", "f32")
    same = Dump(where / "dump", dtype)
    own = {name: distance((same.read(prompt, name), dump.read(prompt, name)) for prompt in dump.prompts)
           for name in dump.places}
    widths = [size for group in source.tensors.groups for size in group.shape]
    return Reference(
        dump=dump, generated={each.prompt: each for each in launched.ranks[0].passes[0].outputs},
        sketches=Sketches(where / "dump"), dtype=dtype, own=own, margin_error=_margin_error(same, dump),
        layers=len(source.model.layers), longest_sum=max(widths))


def _check_memory(source: Release) -> None:
    """Raises NotPossible when the weights in f32 do not fit into this machine's memory."""
    need, have = source.model.parameters * BYTES["f32"], host.available_memory()
    if need > have:
        raise NotPossible(f"the reference takes {format_bytes(need)} in f32 and {format_bytes(have)} are free here",
                          "check it on a machine with more memory")


def _margin_error(same: Dump, truth: Dump) -> float:
    """Over all tokens of all prompts."""
    return max(margin_error(same.read(prompt, "logits"), truth.read(prompt, "logits")) for prompt in truth.prompts)


def _assignment(run: LayoutRun, folder: Path) -> Assignment:
    """What the run was told. Raises StoreError when it is gone."""
    path = (folder / run.dump).parent / "assignment.json"
    try:
        return from_json(path.read_bytes(), Assignment)
    except FileNotFoundError:
        raise StoreError(f"the dumps of {run.layout.text} are gone from {folder}",
                         "run again with --from run --force") from None
