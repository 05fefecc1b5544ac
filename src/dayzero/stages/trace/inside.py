"""What a confined process is asked for: the functions of this package, with the release's own code; see child.py."""

from __future__ import annotations

import gc

from dayzero.progress import Progress
from dayzero.schema import OpGraph, Release, from_json

from .child import Ledgers, TraceRequest
from .ledger.consumption import ledgers
from .tracer import trace


def traced(data: bytes, progress: Progress) -> OpGraph:
    """In the process, which is short: its hundreds of thousands of modules are not looked through for garbage."""
    gc.disable()
    request = from_json(data, TraceRequest)
    return trace(request.release, batch=request.batch, tokens=request.tokens, context=request.context,
                 towers=request.towers, own=request.own, progress=progress)


def both_ledgers(data: bytes, progress: Progress) -> Ledgers:
    """In the process, likewise."""
    gc.disable()
    progress.update("building the model without weights")
    consumption, coverage = ledgers(from_json(data, Release), own=True)
    return Ledgers(consumption=consumption, coverage=coverage)
