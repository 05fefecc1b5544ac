"""What a check of a backend found."""

from __future__ import annotations

from typing import Literal

from dayzero.schema import Noun


class Outcome(Noun, frozen=True, kw_only=True):
    """One check."""

    check: str
    """Its name; with a slash and what was checked where it has several parts: operators/norm."""
    status: Literal["pass", "fail", "skip"]
    """A check is skipped where the device does not have what it is about; that is no failure."""
    detail: str
    """What was measured, or what is wrong."""
    seconds: float = 0.0
    """How long it took."""


class Conformance(Noun, frozen=True, kw_only=True):
    """All checks of a backend."""

    backend: str
    """Its name."""
    device: str
    """What there is, as it describes itself."""
    outcomes: tuple[Outcome, ...]
    """In order."""

    @property
    def passed(self) -> bool:
        """Whether there are checks, and none failed."""
        return bool(self.outcomes) and all(outcome.status != "fail" for outcome in self.outcomes)


class Failure(Exception):  # noqa: N818  (it is what a check found)
    """A check does not hold; the message says what is wrong."""


class Skip(Exception):  # noqa: N818
    """There is nothing to check; the message says why."""


def require(holds: object, wrong: str) -> None:
    """Raise Failure unless it holds."""
    if not holds:
        raise Failure(wrong)
