"""Locating layer by layer, in the memory of one layer: for models that fit nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from dayzero.errors import UsageError
from dayzero.progress import SILENT, Progress
from dayzero.runtime.assignment import DTYPES
from dayzero.runtime.building import blueprint
from dayzero.runtime.loading import Checkpoint
from dayzero.runtime.substitution import Heard, Inputs, Layers, Recorded, Runner, threads_for
from dayzero.schema.located import Located, Location, PlaceError

from . import check_common, folder_of
from .finding import Finder
from .judging import judge
from .recorded import DumpRows

KINDS, ALL = "kinds", "all"
_LENGTHS = (48, 33)
"""Tokens of the sequences that a layer is given when nothing was recorded."""
_SEED = 7


def locate_layers(release: Path, dump: Path | None, which: str, *, dtype: str = "bf16", own: bool = False,
                  causes: bool = True, looked_into: int = 4, progress: Progress = SILENT) -> Location:
    """`which`: kinds (one layer of each kind), all, or numbers with commas. With a dump, what the run had in these
    layers; without one, what the layer computes here in `dtype` with the operators that the library takes, of seeded
    inputs: rows of the embedding.

    Raises UsageError for another `which` or `dtype`, NotPossible and ReleaseError as `locate` does.
    """
    if dtype not in DTYPES:
        raise UsageError(f"there is no precision {dtype!r}", f"take one of {', '.join(DTYPES)}")
    progress.update("building the model without weights")
    release = folder_of(release)
    layers = Layers(release, own=own)
    numbers = chosen(layers, which)
    run = DumpRows(dump) if dump is not None else None
    precision = run.precision if run is not None else dtype
    located: list[Located] = []
    places: list[PlaceError] = []
    missing: dict[str, str] = dict(run.not_compared) if run is not None else {}
    for done, number in enumerate(numbers):
        progress.update(f"layer {number}", done, len(numbers))
        recorded: Any = run if run is not None else _made(layers, number, dtype)
        with layers.layer(number) as truth:
            if precision == "f32":
                found = _looked(Runner(truth, None), recorded, causes, looked_into - len(located), progress)
            else:
                with layers.layer(number, precision) as coarse:
                    found = _looked(Runner(truth, coarse), recorded, causes, looked_into - len(located), progress)
        located += found[0]
        places += [msgspec.structs.replace(each, order=len(places) + each.order) for each in found[1]]
        missing |= found[2]
    if run is not None:
        run.close()
    told = ", ".join(f"{number} (as {_many(layers.kinds.get(number, (number,)))})" for number in numbers)
    return Location(located=tuple(located), places=tuple(places), not_compared=missing,
                    reference=f"{release.name}, one layer at a time, f32: layers {told}")


def chosen(layers: Layers, which: str) -> list[int]:
    """Numbers of layers. Raises UsageError."""
    if which == KINDS:
        return sorted(layers.kinds)
    if which == ALL:
        return list(range(len(layers.names)))
    try:
        numbers = [int(each) for each in which.split(",")]
    except ValueError:
        numbers = [-1]
    if not all(0 <= each < len(layers.names) for each in numbers):
        raise UsageError(f"there are no layers {which!r}", f"give kinds, all, or numbers below {len(layers.names)}")
    return numbers


def _many(numbers: tuple[int, ...]) -> str:
    return "no other" if len(numbers) == 1 else f"{len(numbers)} layers are"


def _looked(runner: Runner, recorded: Any, causes: bool, limit: int, progress: Progress
            ) -> tuple[list[Located], list[PlaceError], dict[str, str]]:
    with threads_for(runner.truth.watched):
        judged = judge(runner, recorded)
        check_common(judged)
        finder = Finder(runner, recorded, judged, causes=causes, progress=progress)
        return finder.located(max(0, limit)), judged.places, judged.others


def _made(layers: Layers, number: int, dtype: str) -> Recorded:
    """What the layer computes here of rows of the embedding."""
    generator = np.random.default_rng(_SEED)
    model: Any = blueprint(layers.root, own=layers.own).model
    size = model.get_input_embeddings().weight.shape[0]
    tokens = {sequence: generator.integers(0, size, length) for sequence, length in enumerate(_LENGTHS)}
    values = {sequence: _embedded(layers, model, ids) for sequence, ids in tokens.items()}
    with layers.layer(number, dtype, simple=False) as candidate:
        return Heard(candidate, Inputs(layers.names[number], values, tokens, dtype))


def _embedded(layers: Layers, model: Any, tokens: Any) -> Any:
    """[length, hidden size] f32: rows of the embedding, only these read."""
    table = model.get_input_embeddings()
    name = next(f"{path}.weight" for path, module in model.named_modules() if module is table)
    checkpoint = Checkpoint(layers.root, model)
    try:
        rows = [checkpoint.read({name: {0: ((int(each), int(each) + 1),)}}, dtype=torch.float32)[name]
                for each in tokens]
    finally:
        checkpoint.close()
    return torch.cat(rows).numpy()
