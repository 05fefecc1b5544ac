"""Where runs are recorded: releases, references, correct runs for their noise, faulty ones; each made once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tests.faults import models
from tests.faults.correct import Correct
from tests.faults.fault import Fault
from tests.faults.ranks import record_ranks
from tests.faults.work import Meddling, Way, run, sequences

WHOLE = Way(cache=False)
"""How references run: every sequence alone, in one pass."""
_ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}


class Lab:
    """A folder of releases and dumps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def release(self, kind: str, seed: int = 0) -> Path:
        """The release of an architecture."""
        folder = self.folder / "releases" / f"{kind}-{seed}"
        return folder if (folder / "config.json").exists() else models.write(kind, folder, seed=seed)

    def reference(self, kind: str, *, seed: int = 0, tokens: int = 0, gradients: bool = False) -> Path:
        """Dump of the release in f32."""
        folder = self.folder / "references" / f"{kind}-{seed}-{tokens}{'-gradients' if gradients else ''}"
        if not folder.exists():
            root = self.release(kind, seed)
            _record(models.load(root, gradients=gradients), folder, root, WHOLE, tokens, gradients=gradients)
        return folder

    def noise(self, kind: str, precision: str, *, seed: int = 0, tokens: int = 0, gradients: bool = False
              ) -> tuple[Path, ...]:
        """Dumps of correct runs: in the precision, and with embeddings that are disturbed by a roundoff of it."""
        made = []
        for number in range(3):
            name = f"{kind}-{seed}-{tokens}-{precision}-{number}{'-gradients' if gradients else ''}"
            folder = self.folder / "noise" / name
            made.append(folder)
            if not folder.exists():
                root = self.release(kind, seed)
                model = models.load(root, precision, gradients=gradients)
                with _disturbed(model, _ROUNDOFF[precision] if number else 0.0, number):
                    _record(model, folder, root, WHOLE, tokens, gradients=gradients)
        return tuple(made)

    def twin(self, fault: Fault) -> Path:
        """Dump of the run without its fault, in the same precision and way: what tools are given that compare bits."""
        way = dataclasses.replace(fault.way, shift=0)
        return self.right(Correct(f"as_faulty-{way.batch}-{way.packed}-{way.cache}", fault.kind, fault.precision, way))

    def faulty(self, fault: Fault) -> Path:
        """Dump of a run with a fault."""
        folder = self.folder / "faults" / f"{fault.kind}-{fault.name.replace(' ', '_').replace('/', '-')}"
        if folder.exists():
            return folder
        root = self.release(fault.kind)
        if fault.layout:
            record_ranks(root, folder, fault.layout, fault.precision, way=fault.way, fault=fault)
            return folder
        model = models.load(root, fault.precision, gradients=fault.gradients is not None)
        (fault.gradients or fault.plant)(model)
        _record(model, folder, root, WHOLE if fault.gradients else fault.way, 0, meddling=fault.meddling,
                gradients=fault.gradients is not None)
        return folder

    def right(self, correct: Correct) -> Path:
        """Dump of a correct run."""
        name = f"{correct.kind}-{correct.name}-{correct.precision}".replace(" ", "_")
        folder = self.folder / "correct" / name
        if folder.exists():
            return folder
        root = self.release(correct.kind, correct.seed)
        if correct.layout:
            record_ranks(root, folder, correct.layout, correct.precision, way=correct.way)
            return folder
        model = models.load(root, correct.precision, attention=correct.attention, experts=correct.experts)
        threads = torch.get_num_threads()
        torch.set_num_threads(correct.threads)
        try:
            _record(model, folder, root, correct.way, correct.tokens)
        finally:
            torch.set_num_threads(threads)
        return folder


def effect(lab: Lab, fault: Fault) -> float | None:
    """Relative L2 of the logits that the fault makes in f32, against a run without it; None where gradients are wrong
    or ranks are needed."""
    from tests.faults.work import distance

    if fault.layout or fault.gradients:
        return None
    model = models.load(lab.release(fault.kind))
    right = run(model)
    fault.plant(model)
    return distance(right, run(model, fault.way, meddling=fault.meddling))


def _record(model: Any, folder: Path, root: Path, way: Way, tokens: int, *, meddling: Meddling | None = None,
            gradients: bool = False) -> None:
    from dayzero.runtime.recording import record

    ids = sequences(tokens)
    with record(model, folder, root=root, gradients="parameters" if gradients else "") as recording:
        if gradients:
            _backward(model, ids, recording)
        else:
            run(model, way, tokens=ids, expect=recording.expect, meddling=meddling or Meddling())


def _backward(model: Any, ids: Any, recording: Any) -> None:
    """One pass back for the longest sequence: the loss of each next token."""
    recording.expect([0])
    given = torch.tensor([ids[0]])
    model(input_ids=given, labels=given, use_cache=False).loss.backward()


@contextmanager
def _disturbed(model: Any, size: float, seed: int) -> Iterator[None]:
    """The embedding's output times 1 + size * noise."""
    if not size:
        yield
        return
    numbers = torch.Generator().manual_seed(100 + seed)

    def disturb(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(output.shape, generator=numbers)
        return (output.float() * (1 + size * noise)).to(output.dtype)

    handle = model.get_input_embeddings().register_forward_hook(disturb)
    try:
        yield
    finally:
        handle.remove()
