"""Check: two processes reduce, gather, send and receive on the backend's devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from dayzero.backends import Backend, backends
from dayzero.backends.together import together
from dayzero.errors import StageError

from .nouns import Failure, Skip, require
from .rank import NAME_FILE, Found

_RANKS = 2
_SECONDS = 120.0


def parts(backend: Backend) -> Iterator[tuple[str, Callable[[], str]]]:
    """One."""
    yield "", lambda: _collectives(backend)


def _collectives(backend: Backend) -> str:
    from dayzero.schema import Layout

    if backend.name not in backends() or backends().get(backend.name) is not backend:
        raise Skip("it is not registered, so that another process does not find it by its name")
    if reason := backend.parallel_plan(Layout(tp=_RANKS)).reason:
        raise Skip(reason)

    def prepare(folder: Path) -> None:
        (folder / NAME_FILE).write_text(backend.name)

    try:
        found = together("dayzero.runtime.conformance.rank", _RANKS, 1, Found, prepare=prepare, deadline=_SECONDS)
    except StageError as error:
        raise Failure(f"{error.message}: {error.log[-300:]}") from error
    wrong = sorted({each for one in found for each in one.wrong})
    require(not wrong, "wrong: " + "; ".join(wrong))
    how = "through the host's memory" if backend.collectives().staged else "directly"
    return f"{', '.join(found[0].right)} by {backend.collectives().library}, {how}"
