"""How fast a device streams memory and multiplies matrices, timed with torch. For processes that measure."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle
from statistics import median
from typing import Any

import torch

from . import host

HOST_WIDTH, HOST_ROWS = 2048, 128
"""A matrix of 8 MiB in bf16: large beside one operator's fixed cost, small beside a model; rows of a prefill step."""
_MATRICES = 5


def settle(device: torch.device) -> None:
    """Wait until a device has done all that it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def seconds_of(body: Callable[[], Any]) -> float:
    """Time of one call."""
    start = time.perf_counter()
    body()
    return time.perf_counter() - start


def median_call(body: Callable[[], Any], calls: int) -> float:
    """Median time of so many calls."""
    return median(seconds_of(body) for _ in range(calls))


def per_call(body: Callable[[], Any], seconds: float) -> float:
    """Median time of a call, over as many as fit into so many seconds."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        times.append(seconds_of(body))
    return median(times)


def memory_bandwidth(device: torch.device, width: int = HOST_WIDTH) -> Callable[[float], float]:
    """Bytes a second at which weights stream through matrix-vector products, measured for so many seconds."""
    size = width * width * 2
    count = max(4, 4 * host.cache_bytes() // size)
    weights = [torch.full((width, width), 0.01, dtype=torch.bfloat16, device=device) for _ in range(count)]
    vector = torch.ones(1, 1, width, dtype=torch.bfloat16, device=device)

    def sweep() -> None:
        for weight in weights:
            torch.nn.functional.linear(vector, weight)
        settle(device)

    return lambda seconds: count * size / per_call(sweep, seconds)


def matrix_rate(device: torch.device, dtype: torch.dtype, width: int = HOST_WIDTH, tokens: int = HOST_ROWS
                ) -> Callable[[float], float]:
    """Operations a second of matrix products as prefill does them: one after another, each with other weights."""
    rows = torch.full((tokens, width), 0.01, dtype=dtype, device=device)
    weights = cycle([torch.full((width, width), 0.01, dtype=dtype, device=device) for _ in range(_MATRICES)])
    flops = 2 * tokens * width * width

    def product() -> None:
        torch.nn.functional.linear(rows, next(weights))
        settle(device)

    return lambda seconds: flops / per_call(product, seconds)
