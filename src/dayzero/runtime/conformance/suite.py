"""The checks by name, and how one is run: whatever it raises is what it found."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from dayzero.backends import Backend, backends
from dayzero.errors import NotPossible, UsageError, did_you_mean
from dayzero.progress import SILENT, Progress
from dayzero.text import one_line

from .nouns import Conformance, Failure, Outcome, Skip

CHECKS = {
    "device": "its devices exist, and have the type and the indices that it says",
    "memory": "what is allocated is counted, what is freed comes back, nothing is kept by operators",
    "cap": "beyond a cap nothing is allocated, and after it everything is as before",
    "copies": "values of every dtype go to the device and come back bit by bit",
    "streams": "work of one stream is done in order, and one stream waits for another",
    "operators": "operators give what the host gives, within the rounding of their dtype",
    "coverage": "what it says about operators is true: what it does not have falls back with a warning, or raises",
    "collectives": "two processes reduce, gather, send and receive",
    "optimizations": "each choice computes the same, and leaves everything as it was",
    "layouts": "it says which layouts it runs, and on which devices",
    "models": "small models give the host's logits and the host's tokens",
}
"""Check -> what it is about."""
_LIMIT = 400


def check_backend(backend: Backend | str, only: Sequence[str] = (), progress: Progress = SILENT) -> Conformance:
    """Run the checks, or `only` those, on a backend or the one of that name.

    Raises UsageError for an unknown name, NotPossible where the backend, or torch, cannot be used here.
    """
    for name in only:
        if name not in CHECKS:
            raise UsageError(f"no check is named {name!r}", f"{did_you_mean(name, CHECKS)}checks: {', '.join(CHECKS)}")
    subject = backends().get(backend) if isinstance(backend, str) else backend
    if reason := subject.available():
        raise NotPossible(f"backend {subject.name} cannot be used here: {reason}", "dayzero backend list")
    subject.device()  # what cannot even begin is not a failed check
    outcomes: list[Outcome] = []
    for name in only or CHECKS:
        progress.update(f"checking backend {subject.name}: {name}", len(outcomes))
        outcomes += _outcomes(name, subject)
    described = "; ".join(f"{what}: {value}" for what, value in subject.describe().items())
    return Conformance(backend=subject.name, device=described, outcomes=tuple(outcomes))


def _outcomes(name: str, backend: Backend) -> Iterator[Outcome]:
    """Of one check, part by part."""
    parts = importlib.import_module(f".{name}", __package__).parts(backend)
    for part, body in parts:
        begin = time.perf_counter()
        status, detail = _found(body)
        yield Outcome(check=f"{name}/{part}" if part else name, status=status, detail=one_line(detail)[:_LIMIT],
                      seconds=time.perf_counter() - begin)


def _found(body: Callable[[], str]) -> tuple[Literal["pass", "fail", "skip"], str]:
    try:
        return "pass", body()
    except Skip as reason:
        return "skip", str(reason)
    except Failure as wrong:
        return "fail", str(wrong)
    except Exception as error:  # a stranger's backend may raise anything, and that is what is to be told
        return "fail", f"{type(error).__name__}: {error}"
