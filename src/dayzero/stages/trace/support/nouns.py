"""What is said about an operator on a backend."""

from __future__ import annotations

from typing import Literal

from dayzero.schema import Noun

Status = Literal["native", "composite", "fallback", "compiled", "library", "none", "unknown"]
STATUSES: dict[Status, str] = {
    "none": "not implemented there", "unknown": "nothing says whether it is",
    "library": "needs the real kernel library",
    "fallback": "runs on another device, with copies", "compiled": "only as a decomposition when compiled",
    "composite": "torch's own code for any device", "native": "has a kernel of its own",
}  # fmt: skip
"""Status -> what it means; the worst first."""


class Known(Noun, frozen=True, kw_only=True):
    """What one source says about an operator, whatever its dtype."""

    status: Status
    """How it is implemented."""
    how: str
    """Where that is known from."""


class Support(Noun, frozen=True, kw_only=True):
    """One operator with one dtype on one backend."""

    op: str
    """Operator, such as aten.mm."""
    dtype: str
    """dtype of its first tensor."""
    backend: str
    """Name of the backend."""
    status: Status
    """How it is implemented."""
    how: str
    """Where that is known from."""
    tried: Literal["works", "fails", ""]
    """Whether it ran there on tiny tensors; empty: it was not tried, or its arguments could not be made."""
    count: int
    """Calls in all phases of the graph."""
