"""One rank's part of trying relations on a release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from dayzero.errors import NotPossible
from dayzero.runtime.assignment import Assignment, RankResult
from dayzero.runtime.library import cause
from dayzero.runtime.rank import Rank
from dayzero.runtime.sharding import Mesh
from dayzero.schema.relation import Held, Relations

from .caching import caching
from .experts import experts
from .positions import positions
from .sampling import sampling
from .sequences import sequences
from .subject import Subject, skipped


def work(assignment: Assignment, mesh: Mesh, say: Callable[[str], None]) -> RankResult:
    """All relations. Raises NotPossible when the model or the layout cannot be run."""
    asked = assignment.relations
    assert asked is not None
    say("loading")
    rank = Rank(Path(assignment.root), asked.dtype, own=assignment.own, threads=torch.get_num_threads())
    rank.prepare(mesh.place.layout, mesh.place.rank)
    rank.join(mesh)
    subject = Subject(rank.model, asked.dtype, assignment.seed, asked.vocabulary)
    held = tuple(_tried(subject, asked, mesh, say))
    rank.settle()
    return RankResult(rank=mesh.place.rank, device="cpu", passes=(), held=held)


def _tried(subject: Subject, asked: Relations, mesh: Mesh, say: Callable[[str], None]) -> Iterator[Held]:
    groups: dict[str, Callable[[], Iterator[Held]]] = {
        "sequences": lambda: sequences(subject), "caches": lambda: caching(subject, asked.lengths),
        "positions": lambda: positions(subject, asked.shift),
        "sampling": lambda: sampling(subject),
        "experts": lambda: experts(subject, asked.factors, asked.groups)}
    for name, tried in groups.items():
        if asked.only and name not in asked.only:
            continue
        say(f"relations of {name}")
        if name == "experts" and mesh.place.layout.world_size > 1:
            yield skipped("experts", "weights are changed on one process only")
            continue
        yield from _guarded(name, tried())


def _guarded(name: str, found: Iterator[Held]) -> Iterator[Held]:
    """What a model does not take is told, and the rest goes on."""
    while True:
        try:
            yield next(found)
        except StopIteration:
            return
        except NotPossible as reason:
            yield skipped(name, reason.reason)
            return
        except (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError) as error:
            yield skipped(name, f"the model does not take it: {cause(error)}")
            return
