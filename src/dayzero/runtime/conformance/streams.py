"""Check: work of one stream is done in order, and one stream waits for another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from dayzero.backends import Backend

from .nouns import Failure, require

_LATE = 0.05
"""Seconds by which a stream that does not wait would be too early."""


def parts(backend: Backend) -> Iterator[tuple[str, Callable[[], str]]]:
    """Order, waiting, errors."""
    yield "order", lambda: _order(backend)
    yield "wait", lambda: _wait(backend)
    yield "errors", lambda: _errors(backend)


def _order(backend: Backend) -> str:
    """x <- 3 x + 1 modulo 1009, fifty times: another order gives another number."""
    stream = backend.stream()
    value = torch.ones(1, dtype=torch.int64, device=backend.device())
    backend.synchronize()
    expected, steps = 1, 50

    def step() -> None:
        value.mul_(3).add_(1).remainder_(1009)

    for _ in range(steps):
        stream.run(step)
        expected = (3 * expected + 1) % 1009
    stream.synchronize()
    got = int(value.item())
    require(got == expected, f"{steps} steps gave {got} instead of {expected}")
    stream.synchronize()  # with nothing left
    return f"{steps} steps in order"


def _wait(backend: Backend) -> str:
    device = backend.device()
    writer, reader, caller = backend.stream(), backend.stream(), backend.current_stream()
    source, copy = torch.zeros(1 << 16, device=device), torch.zeros(1 << 16, device=device)
    backend.synchronize()

    def write() -> None:
        heavy = torch.ones(512, 512, device=device)
        for _ in range(4):
            heavy = heavy @ heavy / 512
        time.sleep(_LATE)
        source.fill_(heavy[0, 0].item() + 1)

    writer.run(write)
    reader.wait(writer)
    reader.run(lambda: copy.copy_(source))
    caller.wait(reader)
    seen = caller.run(lambda: copy.clone()).result()
    caller.synchronize()
    values = set(seen.cpu().tolist())
    require(values == {2.0}, f"a stream that waits for another read {sorted(values)[:4]} where the other wrote 2")
    return "a stream waits for another, and the current stream for both"


def _errors(backend: Backend) -> str:
    """Work that fails must not be lost."""
    stream = backend.stream()

    def work() -> None:
        raise ArithmeticError("on purpose")

    try:
        future = stream.run(work)
        future.result()
    except ArithmeticError:
        return "what work raises arrives"
    raise Failure("what work raised is lost")
