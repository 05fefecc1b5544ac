"""What is done next, as plain data: decided in one place, sent to every rank, applied by each to its own pages.

A step holds numbers only, so that ranks whose tensors differ (shares of heads, other layers) carry out the same one.
"""

from __future__ import annotations

import msgspec

from dayzero.schema import Sampling


class Row(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of one sequence that one call computes."""

    sequence: int
    start: int
    """Tokens of it that were computed before."""
    tokens: tuple[int, ...]
    sampling: Sampling | None = None
    """None where more of the prompt is to come."""

    @property
    def end(self) -> int:
        """Tokens of it that are computed then."""
        return self.start + len(self.tokens)


class Grown(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Blocks that a sequence gets, instead of those that it has at these places or behind them."""

    sequence: int
    group: int
    blocks: tuple[int, ...]
    at: int = 0
    """Number of the first of them within the sequence; those before it are not held when the table was empty."""


class Trimmed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Blocks at the start of its table that a sequence no longer needs."""

    sequence: int
    group: int
    count: int


class Copied(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Content of one block that another gets."""

    group: int
    source: int
    target: int


class Freed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Blocks whose content nobody needs any more."""

    group: int
    blocks: tuple[int, ...]


class Dropped(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A sequence that is gone, or whose blocks are."""

    sequence: int


Change = Grown | Trimmed | Copied | Freed | Dropped


class Swapped(msgspec.Struct, frozen=True, array_like=True):
    """Blocks of a sequence that leave the pool, or come back from where they went."""

    sequence: int
    tier: str
    """"host" or "disk"."""
    tokens: int
    """Computed tokens of the sequence."""


class Step(msgspec.Struct, frozen=True, array_like=True):
    """Carried out in the order of the fields."""

    number: int
    spilled: tuple[Swapped, ...] = ()
    """Their blocks are as they were before any of the changes."""
    forgotten: tuple[int, ...] = ()
    """Sequences whose saved blocks are gone."""
    changes: tuple[Change, ...] = ()
    """One after the other."""
    restored: tuple[Swapped, ...] = ()
    batches: tuple[tuple[Row, ...], ...] = ()
    """Calls of the model."""

    @property
    def moves(self) -> bool:
        """Whether blocks or states change owners or places: what is not yet written back has to be, before."""
        return bool(self.spilled or self.restored or any(isinstance(each, Dropped | Copied) for each in self.changes))


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """A sequence that a step could not go on with."""

    sequence: int
    message: str
    restoring: bool = False
    """Its blocks did not come back as they went: its tokens can be computed again."""


class Done(msgspec.Struct, frozen=True, array_like=True):
    """What a step gave."""

    tokens: dict[int, int] = {}
    """For each sequence with a next token: that token."""
    failures: tuple[Failure, ...] = ()


def encode(step: Step) -> bytes:
    """For the other ranks."""
    return msgspec.msgpack.encode(step)


def decode(data: bytes) -> Step:
    """Raises msgspec.DecodeError for anything that `encode` did not write."""
    return msgspec.msgpack.decode(data, type=Step)
