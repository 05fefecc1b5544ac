"""What is said about an operator on a backend."""

from __future__ import annotations

from typing import Literal

from dayzero.backends.base import STATUSES, Known, Status
from dayzero.schema import Noun

__all__ = ["STATUSES", "Known", "Status", "Support"]

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
