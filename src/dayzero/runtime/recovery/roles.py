"""What a member's parts know of each other: what it tells, what it follows, what it is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .messages import Join, Serve, Share


class NotFiniteError(Exception):
    """A layer put out a value that is no number."""

    def __init__(self, layer: int) -> None:
        self.layer = layer
        super().__init__(f"layer {layer} puts out values that are not finite")


class LeftError(Exception):
    """The controller has something else for this member than to serve on."""


class Told(Protocol):
    """Where the rank that speaks for its replica says what it has made."""

    def token(self, request: int, token: int, finish: str) -> None:
        """One more token, and why it is the last: empty when it is not."""

    def logits(self, request: int, width: int, values: bytes) -> None:
        """Of a request: [tokens, width] as f32."""

    def refused(self, request: int, reason: str, hint: str) -> None:
        """That a request cannot be served."""


class Orders(Protocol):
    """What there is to serve in one epoch. Raises GoneError when the controller is gone."""

    def come(self) -> int:
        """Orders that have come and were not taken. Raises LeftError when one of them is something else."""

    def take(self, count: int) -> Sequence[Serve]:
        """The first ones, which have come."""

    def rest(self, share: Share) -> None:
        """Say that all is served, and wait until there is more."""


class Serving(Protocol):
    """What a member is for: holds the weights of a place, and serves in an epoch."""

    def load(self, order: Join) -> int:
        """Hold what the place needs, reading only what is not held yet. Bytes read."""

    def serve(self, orders: Orders, told: Told) -> None:
        """Meet the others of the epoch and follow orders until something is raised: LeftError; NotFiniteError;
        NotPossible, UsageError, ReleaseError for what nobody can serve; any other exception when a peer is gone."""

    def leave(self) -> None:
        """Leave the process groups without waiting for anybody, so that peers that wait for this rank see it go."""

    def close(self) -> None:
        """Before the process ends."""


class Pace:
    """How far a member is with its passes."""

    def __init__(self) -> None:
        self.passes, self.inside, self.layers = 0, False, 0

    def begin(self) -> None:
        """Count from nothing."""
        self.passes, self.inside, self.layers = 0, False, 0

    def enter(self) -> None:
        """A pass through its layers begins."""
        self.inside = True

    def step(self) -> None:
        """A layer has run."""
        self.layers += 1

    def leave(self) -> None:
        """The pass has ended."""
        self.inside, self.passes = False, self.passes + 1
