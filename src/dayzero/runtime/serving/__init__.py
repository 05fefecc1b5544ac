"""Serving: requests come in, tokens go out; one engine for every layout and every kind of attention.

    worker = Worker(model_forward(model), pages)                on every rank
    engine = Engine(worker.run, pages.groups, [room])           in one place, with every rank's room
    for token in engine.submit(Request(tokens, 100)): ...
"""

from __future__ import annotations

from .engine import BUDGET, Engine
from .lanes import Lanes
from .request import Request, RequestFailed, Stream
from .worker import Forward, Worker, model_forward

__all__ = ["BUDGET", "Engine", "Forward", "Lanes", "Request", "RequestFailed", "Stream", "Worker", "model_forward"]
