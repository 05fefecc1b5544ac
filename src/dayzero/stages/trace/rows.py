"""Rows of the graph from the calls of a run: equal calls of a module together, and those of the layers that were left
out as well. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf

from dayzero.schema import OpCall, Phase

from .capture.captured import Call, Captured
from .capture.expansion import EXPANSION


def operators(captured: Captured, types: Mapping[str, str], shown: Callable[[str], str]) -> tuple[OpCall, ...]:
    """All calls of a run, in the order in which they were first made. `types`: class name of each module by its path;
    `shown`: the path that stands for a module and those that are alike inside a layer."""
    ran: dict[Call, list[int]] = {}
    for position, call in enumerate(captured.calls):
        same = ran.setdefault(call._replace(visit=0, functions=()), [position, 0, 0, 0])
        for slot, amount in enumerate((1, call.flops, call.bytes), 1):
            same[slot] += amount
    copies = {call.place: captured.copies(call.place) for call in ran}
    rows: dict[tuple[object, ...], list[float]] = {}
    for call, (position, *amounts) in ran.items():
        head, own, tail = _split(call.place)
        for layer, times in copies[call.place].items():
            path = f"{head}{layer}{tail}" if layer >= 0 else call.place
            key = (call.op, shown(path), types[path], call.kind, call.inputs, call.outputs, call.dtype)
            first = (position, inf) if layer == own else (captured.times.get(f"{head}{layer}", position), layer)
            row = rows.setdefault(key, [*first, position, 0, 0, 0])
            for slot, amount in enumerate(amounts, 3):
                row[slot] += times * amount
    return tuple(_row(key, row, captured) for key, row in sorted(rows.items(), key=lambda pair: pair[1][:3]))


def _row(key: tuple[object, ...], row: list[float], captured: Captured) -> OpCall:
    op, module, module_type, kind, inputs, outputs, dtype = key
    return OpCall(op=op, module=module, module_type=module_type, kind=kind, inputs=inputs, outputs=outputs,  # type: ignore[arg-type]
                  dtype=dtype, count=int(row[3]), flops=int(row[4]), bytes=int(row[5]), phase=captured.phase)  # type: ignore[arg-type]


def _split(path: str) -> tuple[str, int, str]:
    """Path before its first number, the number (-1: there is none), and path after it."""
    parts = path.split(".")
    depth = next((at for at, part in enumerate(parts) if part.isdigit()), None)
    if depth is None:
        return path, -1, ""
    head = "".join(f"{part}." for part in parts[:depth])
    return head, int(parts[depth]), "".join(f".{part}" for part in parts[depth + 1:])


def totals(captured: Captured, calls: Iterable[OpCall]) -> Phase:
    """What a run came to, from its rows."""
    own = [call for call in calls if call.phase == captured.phase]
    return Phase(name=captured.phase, batch=captured.batch, tokens=captured.tokens, context=captured.context,
                 flops=sum(call.flops for call in own), bytes=sum(call.bytes for call in own),
                 operators=sum(call.count for call in own if call.kind != EXPANSION))
