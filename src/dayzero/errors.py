"""The errors that a user can cause. The command line tells an OSError in the same two lines; anything else is a bug and
keeps its traceback.

    DayzeroError                 message (what is wrong) and hint (what to do); exit code 2
    ├── UsageError               an option, an argument or a combination of them
    ├── ReleaseError             the release: missing, cut short, inconsistent or unreadable
    │   └── UnsafePathError      a path in a release that leaves its folder
    ├── CardError                a card: a fact is missing, of the wrong type or contradicts another
    ├── HubError                 the model hub: not found, gated, unreachable
    ├── EndpointError            a server of a model: unreachable, refuses, or answers something else
    ├── TargetError              target.toml, a device or an engine
    ├── LayoutError              parallel degrees that do not make the world size
    ├── StoreError               the run directory: cannot be written or read, or is in use
    └── StageError               a stage ran and failed (a worker died); exit code 1

    NotPossible                  not an error: a stage cannot run here, and says why
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from dayzero.text import one_line


class DayzeroError(Exception):
    """A request that cannot be served. `message` says what is wrong, `hint` what to do; each is one line."""

    exit_code = 2

    def __init__(self, message: str, hint: str) -> None:
        self.message, self.hint = one_line(message), one_line(hint)
        super().__init__(self.message)


class UsageError(DayzeroError):
    """An option, an argument or a combination of them is wrong."""


class ReleaseError(DayzeroError):
    """The release is missing, cut short, inconsistent or unreadable."""


class UnsafePathError(ReleaseError):
    """A path taken from a release leaves the release's folder."""


class CardError(DayzeroError):
    """A card lacks a fact, has one of the wrong type, or contradicts itself."""


class HubError(DayzeroError):
    """The model hub does not have it, does not give it, or cannot be reached."""


class EndpointError(DayzeroError):
    """A server of a model cannot be reached, refuses a request, or answers something else than was asked for."""


class TargetError(DayzeroError):
    """target.toml, a device description or an engine profile is wrong."""


class LayoutError(DayzeroError):
    """Parallel degrees that are not positive or do not multiply to the world size."""


class StoreError(DayzeroError):
    """The run directory cannot be written or read, or another process is using it."""


class StageError(DayzeroError):
    """A stage started and failed; `log` is the end of what it printed."""

    exit_code = 1

    def __init__(self, message: str, hint: str, log: str = "") -> None:
        super().__init__(message, hint)
        self.log = log


class NotPossible(Exception):  # noqa: N818  (an outcome, not an error)
    """A stage cannot run here (no weights, no torch, no device). Recorded and shown, never hidden."""

    def __init__(self, reason: str, hint: str = "") -> None:
        self.reason, self.hint = one_line(reason), one_line(hint)
        super().__init__(self.reason)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean "x"? ` for the nearest known word, or an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"? ' if near else ""
