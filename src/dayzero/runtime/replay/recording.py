"""Record what torch allocates while something runs: every allocation of the host's allocator, as its profiler sees it.

On a device with an allocator of its own, torch's snapshot says more (docs/pool.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dayzero.errors import StageError

from .trace import Trace, trace_of


def record(name: str, function: Callable[[], Any]) -> Trace:
    """Run a function and return the trace of host memory that was allocated and freed meanwhile. Memory from before
    is in it only when it is freed. Raises StageError where nothing was allocated."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        function()
    assert seen.profiler is not None
    tree = seen.profiler.kineto_results.experimental_event_tree()
    allocation = torch._C._profiler._EventType.Allocation
    found = sorted((event.start_time_ns, index, event.extra_fields)
                   for index, event in enumerate(_every(tree)) if event.tag == allocation)
    trace = trace_of(name, ((fields.ptr, fields.alloc_size, 0) for _, _, fields in found
                            if fields.device.type == "cpu"))
    if not len(trace.events):
        raise StageError(f"{name}: nothing was allocated on the host while it was recorded", "record what computes")
    return trace


def _every(events: Iterable[Any]) -> Iterator[Any]:
    stack = list(events)
    while stack:
        event = stack.pop()
        yield event
        stack.extend(event.children)
