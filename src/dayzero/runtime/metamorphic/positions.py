"""Relations of positions: with rotary positions only their differences count."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import torch

from dayzero.schema.relation import Held

from .sequences import LENGTH
from .subject import FACTOR, Subject, distance, skipped

SWAPPED = "tokens that are swapped are told apart"


def positions(subject: Subject, shift: int) -> Iterator[Held]:
    """Moved positions change nothing; another order of tokens does."""
    ids = subject.tokens(1, LENGTH)
    yield _moved(subject, ids, shift)
    yield _swapped(subject, ids)


def _moved(subject: Subject, ids: torch.Tensor, shift: int) -> Held:
    name = "all positions moved by the same number"
    if not shift:
        return skipped(name, "the config states no rotary positions for every layer that has positions")
    if "position_ids" not in inspect.signature(subject.model.forward).parameters:
        return skipped(name, "the model takes no positions")
    places = torch.arange(LENGTH)[None]
    return subject.held(f"{name} ({shift})", subject.logits(ids, position_ids=places + shift),
                        subject.logits(ids, position_ids=places), ids)


def _swapped(subject: Subject, ids: torch.Tensor) -> Held:
    """The relation is that it must *not* hold: observed is the noise, and has to stay below the difference."""
    other = ids.clone()
    other[0, [3, 9]] = other[0, [9, 3]]
    if bool((other == ids).all()):
        other[0, 3] = (other[0, 3] + 1) % subject.vocabulary
        other[0, 9] = ids[0, 3]
    seen = distance(subject.logits(other)[:, -1:], subject.logits(ids)[:, -1:])
    return Held(name=SWAPPED, observed=FACTOR * subject.noise(ids), tolerance=seen,
                source="difference of the last position's logits when two tokens before it are swapped",
                detail="noise has to stay below it: otherwise nothing above could show anything")
