"""Memory that is read into on the way. Needs torch."""

from __future__ import annotations

import threading

import torch

_scratch = threading.local()


def scratch(nbytes: int) -> torch.Tensor:
    """Bytes that this thread may use until it asks again."""
    held: torch.Tensor | None = getattr(_scratch, "held", None)
    if held is None or len(held) < nbytes:
        held = _scratch.held = torch.empty(nbytes, dtype=torch.uint8)
    return held[:nbytes]
