"""`record`: the way in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from dayzero.errors import UsageError
from dayzero.runtime.golden import Writer
from dayzero.schema import Layout
from dayzero.schema.golden import Kind, Mode, RankDump

from .facts import origin, place_of, placed
from .gradients import Gradients, Terms
from .kinds import DEFAULT, kinds, selected
from .recorder import Recorder, RowsOf
from .rows import Sequences
from .sampling import Sampling
from .stream import Stream
from .strips import take_strips
from .taking import Taker

_WRAPPERS = ("_orig_mod", "module")
"""Names under which compiled and replicated models keep the one that they are made of."""


class Recording:
    """What is being recorded."""

    def __init__(self, recorder: Recorder, back: Gradients | None) -> None:
        self.recorder, self._back = recorder, back
        self.folder: Path = recorder.stream.writer.folder
        self.paused = recorder.paused
        """Context manager: what runs in there is not recorded."""
        self.within = recorder.within
        """Context manager: what runs in there is one call of the model with these arguments."""
        self.expect = recorder.sequences.expect
        """Called with the numbers that the sequences of the next call are to have."""

    def gradients(self) -> None:
        """Take what the parameters' gradients are now. Raises UsageError where none were asked for."""
        if self._back is None:
            raise UsageError("no gradients are recorded", "ask for them with gradients=")
        self._back.take()


@contextmanager
def record(model: nn.Module, folder: Path | str, *, modules: str | Sequence[str] = DEFAULT,
           layers: Sequence[int] = (), mode: Mode = "whole", sampling: Sampling | None = None, inputs: bool = True,
           gradients: str = "", at_once: bool = True, seed: int = 0, layout: Layout | None = None,
           rank: int | None = None, rows: RowsOf | None = None, terms: Terms | None = None,
           found: dict[str, Kind] | None = None, without: Collection[str] = (), weights: int = 0,
           root: Path | None = None, engine: str = "torch") -> Iterator[Recording]:
    """Record every call of the model into a golden dump in `folder`, which must not hold one of this rank.

    `modules`: default, leaves, all, or patterns (see `kinds.selected`). `layers`: numbers of the layers whose modules
    count; empty: all. `mode`: whole, sampled (see `Sampling`) or
    statistics. `inputs`: what modules take, too. `gradients`: empty, `parameters`, or `outputs` for those too.
    `at_once`: whether those of parameters are taken after every backward call, or when `Recording.gradients` is called.
    `layout` and `rank`: of a distributed run. `rows`: says which row is what where the model's arguments do not.
    `terms`: says what gradients of parameters are called and what is to be added up (see `gradients`). `found`: kinds
    of the modules, where parts of the model do not show them any more. `without`: modules that are not recorded, as
    what stands for parts that other ranks have. `weights`: rows of each matrix that are kept as they are loaded.
    `root`: folder of the release.

    Raises UsageError for a wrong request, StoreError when the dump cannot be written: at the end, so that what runs is
    not disturbed; what was written before can be read. An exception from inside leaves a dump that is not finished.
    """
    if gradients not in ("", "parameters", "outputs"):
        raise UsageError(f"there are no gradients of {gradients!r}", "ask for parameters, or outputs")
    model = _inner(model)
    found = kinds(model) | {name: kind for name, kind in (found or {}).items() if name in dict(model.named_modules())}
    names = [name for name in selected(model, modules, layers, found) if name not in without]
    sampling = sampling or Sampling(seed=seed)
    degrees, own = placed(model, layout)
    rank = own if rank is None else rank
    place = place_of(degrees, rank)
    head = RankDump(
        finished=False, origin=origin(model, engine=engine, root=root), layout=degrees, rank=rank, place=place,
        seed=seed, mode=mode)
    stream = Stream(Writer(Path(folder), head))
    recorder = Recorder(model, names, found, stream, Taker(stream, mode, sampling), inputs=inputs, rows=rows,
                        without=without, sequences=Sequences(place["dp"], degrees.dp))
    back = Gradients(recorder, outputs=gradients == "outputs", at_once=at_once, terms=terms) if gradients else None
    if weights:
        take_strips(recorder, weights)
    recorder.attach()
    failure = "an exception ended it"
    try:
        yield Recording(recorder, back)
        failure = ""
    except BaseException as error:
        failure = f"{type(error).__name__}: {error}"
        raise
    finally:
        recorder.detach()
        if back is not None:
            back.detach()
        _note(stream, recorder)
        stream.close(failure)


def _inner(model: Any) -> Any:
    """What a compiled or replicated model is made of."""
    while (name := next((name for name in _WRAPPERS if isinstance(getattr(model, name, None), nn.Module)
                         and len(list(model.children())) == 1), None)) is not None:
        model = getattr(model, name)
    return model


def _note(stream: Stream, recorder: Recorder) -> None:
    """Say which modules were not heard."""
    missing = [name for name in recorder.names if name not in recorder.heard]
    if not missing:
        return
    few = ", ".join(missing[:3])
    note = (f"{len(missing)} of {len(recorder.names)} modules were not heard: they were not called, or ran inside of "
            f"compiled code ({few}{', ...' if len(missing) > 3 else ''})")
    head = stream.writer.head
    stream.writer.head = msgspec.structs.replace(head, origin=msgspec.structs.replace(
        head.origin, notes=(*head.origin.notes, note)))
