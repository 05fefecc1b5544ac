"""What the controller and its members tell each other. Plain data, without torch."""

from __future__ import annotations

import msgspec

from dayzero.schema import Layout, Overlap, Sampling, TierRecord

GREEDY = Sampling()


class Asked(msgspec.Struct, frozen=True):
    """One request as it stands."""

    request: int
    """Its number."""
    tokens: tuple[int, ...]
    """Token ids of the prompt and of what was generated so far."""
    left: int
    """Tokens that may still be generated."""
    logits: bool = False
    """Whether not tokens are wanted but the logits of these: `left` is 1 until they are there."""
    sampling: Sampling = GREEDY
    """How tokens are chosen."""
    stops: tuple[int, ...] = ()
    """Token ids that end the text beside those that always do."""

    @property
    def length(self) -> int:
        """Tokens in the end."""
        return len(self.tokens) + self.left


class Join(msgspec.Struct, frozen=True, tag=True):
    """To a member: read what a place needs, and leave the one that it has."""

    epoch: int
    """Rises with every order of this kind."""
    layout: Layout
    """The degrees."""
    rank: int
    """The place."""
    store: str
    """File through which the members of the epoch find each other."""


class Serve(msgspec.Struct, frozen=True, tag=True):
    """To all members of an epoch, the same for all: the first one has them meet, each may ask for more."""

    epoch: int
    """The one for which they hold what they need."""
    asked: tuple[Asked, ...] = ()
    """To be served beside what was asked for before."""
    cancelled: tuple[int, ...] = ()
    """Requests that are no longer wanted."""


class Leave(msgspec.Struct, frozen=True, tag=True):
    """To a member: one of the others is lost, leave the epoch."""

    epoch: int
    """The one that is over."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """To a member: end."""


class Here(msgspec.Struct, frozen=True, tag=True):
    """From a member: its libraries are imported, it can take a place."""


class Beat(msgspec.Struct, frozen=True, tag=True):
    """From a member, at intervals: that its process runs, and how far it is."""

    epoch: int
    """The one that it serves; 0: none."""
    passes: int
    """Passes through its layers that it has finished since the last order."""
    inside: bool
    """Whether it is in one."""
    phase: str
    """loading, serving, leaving or waiting."""
    moved: int = 0
    """Grows with each layer that it has run, and with each MiB that it reads while it loads."""


class Token(msgspec.Struct, frozen=True, tag=True):
    """From the rank that speaks for its replica: one more token of a request."""

    epoch: int
    """The one that it serves."""
    request: int
    """Number of the request."""
    token: int
    """Token id."""
    finish: str
    """stop or length when the request has ended with it; else empty."""


class Logits(msgspec.Struct, frozen=True, tag=True):
    """From the rank that speaks for its replica: the logits of a request's tokens."""

    epoch: int
    """The one that it serves."""
    request: int
    """Number of the request."""
    width: int
    """Of the vocabulary."""
    values: bytes
    """[tokens, vocabulary], f32 as this machine has them."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """From the rank that speaks for its replica: a request that cannot be served, while others can."""

    epoch: int
    """The one that it serves."""
    request: int
    """Number of the request."""
    reason: str
    """In one line."""
    hint: str
    """What to do about it."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """From a member: it holds what its place needs."""

    epoch: int
    """The one that it will serve in."""
    read: int
    """Bytes of weights that it read for it; 0: it had them."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What a member holds in its place, and what that took."""

    device: str
    """Where it computes."""
    layers: tuple[int, ...] = ()
    """Decoder layers."""
    parameters: int = 0
    """Elements."""
    weight_bytes: int = 0
    """Bytes of them."""
    load_seconds: float = 0.0
    """Building the model and reading the weights."""
    base_private_bytes: int = 0
    """Private memory before a weight was loaded."""
    peak_private_bytes: int = 0
    """Most private memory since then."""
    peak_during: str = ""
    """What was going on then."""
    peak_device_bytes: int = 0
    """Most memory of a device that has its own."""
    tiers: TierRecord | None = None
    """What keeping weights in lower tiers cost; None: all were in memory."""
    events: tuple[str, ...] = ()
    """What deserves to be known."""
    overlap: tuple[Overlap, ...] = ()
    """What loads, offload traffic and collectives took, and how much of it was hidden."""
    environment: dict[str, str] = {}
    """Versions that the figures depend on."""


class Finished(msgspec.Struct, frozen=True, tag=True):
    """From a member: all that was asked is served. It stays in its place."""

    epoch: int
    """The one that it served."""
    orders: int
    """Orders to serve that it has followed in this epoch."""
    share: Share | None = None
    """Its place so far."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """From a member: it cannot go on in the epoch, and has left the groups."""

    epoch: int
    """The one that it served."""
    reason: str
    """In one line."""
    layer: int = -1
    """The layer that put out a value that is no number; -1: it is something else."""
    error: str = ""
    """Class of an error that no other member would be spared: what was asked for, or the release, is wrong."""
    hint: str = ""
    """What to do about that."""

    @property
    def own(self) -> bool:
        """Whether this member is at fault, and not one that it waited for."""
        return self.layer >= 0


Order = Join | Serve | Leave | Stop
"""From the controller."""
News = Here | Beat | Token | Logits | Refused | Loaded | Finished | Failed
"""From a member."""
