"""Rates of one rank's device and of the way to its host, timed while all ranks time the same. Needs torch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dayzero.backends.rates import HOST_ROWS, HOST_WIDTH, matrix_rate, memory_bandwidth, per_call, settle

from .world import World

ROUNDS = 5
_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
_WIDE = 8192
"""Rows and columns on an accelerator, whose calls are dear beside a smaller matrix."""
_COPY = 1 << 26
"""Bytes of a copy between host and device."""
Measure = Callable[[float], float]


def measure_figures(world: World, seconds: float) -> tuple[dict[str, list[float]], dict[str, str]]:
    """(each rate's value in every round, what cannot be measured -> why)."""
    makers = {**_rates(world.device), **_copies(world.device)}
    found: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    if world.device.type == "cpu":
        missing["host_to_device, device_to_host"] = "the device is the host"
    for name, make in makers.items():
        try:
            measure = make()
            measure(0)
        except (RuntimeError, NotImplementedError) as error:
            missing[name] = str(error).splitlines()[0]
            world.meet()
            continue
        world.meet()
        found[name] = [measure(seconds / (len(makers) * ROUNDS)) for _ in range(ROUNDS)]
    return found, missing


def _rates(device: torch.device) -> dict[str, Callable[[], Measure]]:
    width, rows = (HOST_WIDTH, HOST_ROWS) if device.type == "cpu" else (_WIDE, _WIDE)
    return {"memory_bandwidth": lambda: memory_bandwidth(device, width),
            **{f"matmul.{name}": lambda dtype=dtype: matrix_rate(device, dtype, width, rows)  # type: ignore[misc]
               for name, dtype in _DTYPES.items()}}


def _copies(device: torch.device) -> dict[str, Callable[[], Measure]]:
    """Bytes a second between pinned or ordinary memory of the host and the device; none where they are the same."""
    if device.type == "cpu":
        return {}
    return {f"{way}.{kind}": lambda way=way, kind=kind: _copy(device, way, kind == "pinned")  # type: ignore[misc]
            for way in ("host_to_device", "device_to_host") for kind in ("pinned", "pageable")}


def _copy(device: torch.device, way: str, pinned: bool) -> Measure:
    host = torch.ones(_COPY, dtype=torch.uint8, pin_memory=pinned)
    there = torch.ones(_COPY, dtype=torch.uint8, device=device)
    target, source = (there, host) if way == "host_to_device" else (host, there)

    def once() -> None:
        target.copy_(source, non_blocking=pinned)
        settle(device)

    return lambda seconds: _COPY / per_call(once, seconds)
