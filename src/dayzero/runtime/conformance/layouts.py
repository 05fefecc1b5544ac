"""Check: the backend says which layouts it runs, and on which devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dayzero.backends import Backend
from dayzero.schema import Device, Layout, Link

from .nouns import require


def parts(backend: Backend) -> Iterator[tuple[str, Callable[[], str]]]:
    """One."""
    yield "", lambda: _layouts(backend)


def _layouts(backend: Backend) -> str:
    count, library = backend.device_count, backend.collectives().library
    single = backend.parallel_plan(Layout())
    require(not single.reason and single.devices == (0,), f"one rank: {single.reason or single.devices}")
    require(single.library == library, f"its plan says {single.library}, its collectives {library}")
    for ranks in sorted({2, count, 4 * count}):
        plan = backend.parallel_plan(Layout(tp=ranks))
        if plan.reason:
            require(ranks > count, f"{ranks} ranks are refused with {count} devices: {plan.reason}")
            continue
        require(len(plan.devices) == ranks, f"{ranks} ranks have {len(plan.devices)} devices")
        require(all(0 <= index < count for index in plan.devices), f"{ranks} ranks: devices {plan.devices}")
    link = Link(name="link", devices=2, bandwidth=1e9, latency=1e-6, source="a check")
    described = Device(name="x", vendor="", arch="", memory_bytes=1, memory_bandwidth=1e9, flops={"bf16": 1e9},
                       links=(link,))
    limit = backend.parallel_plan(Layout(), described).tp
    require(limit <= 2, f"a link joins 2 devices, and {limit} ranks are preferred to share matrices")
    return f"{count} devices, collectives by {library}"
