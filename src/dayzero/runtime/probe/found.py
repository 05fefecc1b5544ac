"""What the processes of a probe are told, and what each of them found."""

from __future__ import annotations

import msgspec

from dayzero.schema import Noun


class Wish(Noun, frozen=True, kw_only=True):
    """What is to be measured."""

    backend: str = ""
    """What carries the collectives, in torch's words; empty: what torch says is the device's own."""
    seconds: float = 10.0
    """About what measuring may take, without the start of the processes."""
    domains: tuple[int, ...] = ()
    """Devices of a domain of each level, innermost first; empty: found by messages between pairs."""
    disk: str = ""
    """Folder on the disk to read from; empty: the temporary folder."""


class Call(Noun, frozen=True, kw_only=True):
    """One collective of one size over one level."""

    level: int
    """Which level, 0: innermost."""
    collective: str
    """One of `COLLECTIVES`."""
    ranks: int
    """Ranks of a group."""
    groups: int
    """Groups at once."""
    size: int
    """Bytes, see `Timing.sizes`."""
    seconds: list[float]
    """Of one call, for each round."""


class Found(Noun, frozen=True, kw_only=True):
    """What one rank found."""

    host: str
    """Host that it runs on."""
    device: str
    """What the driver calls its device; empty: the host's processor."""
    backend: str
    """What carried the collectives."""
    domains: tuple[int, ...]
    """Devices of a domain of each level; all ranks find the same."""
    calls: list[Call]
    """Collectives."""
    figures: dict[str, list[float]]
    """Rates, each with its value in every round; names as in `Figure`."""
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    """What could not be measured -> why."""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """Versions and settings."""
