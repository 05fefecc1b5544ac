"""A diff of two graphs for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from dayzero.stages.trace.diff import Amount, Change, Diff, Listed
from dayzero.units import format_count

from .columns import flop, narrow_table, number, section, size

_SIGNS = {"new": "+", "gone": "-", "changed": "~"}


def diff_tables(diff: Diff, top: int = 20) -> Group:
    """The two sides, then what is new, gone and changed; of the places the dearest `top`."""
    return Group(*_parts(diff, top))


def _parts(diff: Diff, top: int) -> Iterator[RenderableType]:
    yield Text(f"from {diff.before.source}\nto   {diff.after.source}")
    if diff.same:
        yield Text("nothing differs", "bold")
        return
    yield _totals(diff)
    yield from _listed("operator calls", _together(diff.calls))
    yield from _listed("layer kinds", diff.layer_kinds)
    yield from _listed("control flow", diff.control_flow)
    yield from _listed("kernel libraries", diff.stand_ins)
    yield from _listed("missing", diff.missing)
    yield from _changes("operators, all places together", diff.operators, top)
    yield from _changes("operators by place", diff.places, top)


def _totals(diff: Diff) -> Group:
    table = narrow_table(["phase"], ["FLOP before", "after", "bytes before", "after", "calls before", "after"])
    for name in sorted({*diff.before.phases, *diff.after.phases}, key=lambda name: name != "prefill"):
        old, new = diff.before.phases.get(name), diff.after.phases.get(name)
        cells = [shown(side[field]) if side else "none" for field, shown in
                 (("flops", flop), ("bytes", size), ("operators", lambda count: f"{count:,}")) for side in (old, new)]
        table.add_row(name, *cells)
    before, after = diff.before.parameters, diff.after.parameters
    told = f"{before:,} parameters on both sides" if before == after else (
        f"parameters {before:,} -> {after:,} ({'+' if after > before else '-'}{format_count(abs(after - before))})")
    return section("totals", table, told + _other_sizes(diff))


def _other_sizes(diff: Diff) -> str:
    """Says that costs are of other workloads."""
    sizes = ("batch", "tokens", "context")
    other = [name for name in diff.before.phases.keys() & diff.after.phases.keys()
             if any(diff.before.phases[name][size] != diff.after.phases[name][size] for size in sizes)]
    return f"; the sides were traced at other sizes: {', '.join(sorted(other))}" if other else ""


def _listed(what: str, listed: Listed) -> Iterator[RenderableType]:
    if listed.new or listed.gone:
        lines = [Text(f"+ {name}", "green") for name in listed.new] + [Text(f"- {name}", "red") for name in listed.gone]
        yield Group(Text(f"\n{what}: {len(listed.new)} new, {len(listed.gone)} gone", "bold"), *lines)


def _together(calls: Listed) -> Listed:
    """The dtypes of each operator on one line."""
    def lines(names: Sequence[str]) -> tuple[str, ...]:
        dtypes: dict[str, list[str]] = {}
        for name in names:
            op, _, dtype = name.partition(" ")
            dtypes.setdefault(op, []).append(dtype)
        return tuple(f"{op} {', '.join(filter(None, each))}".rstrip() for op, each in dtypes.items())

    return Listed(new=lines(calls.new), gone=lines(calls.gone))


def _changes(what: str, changes: Sequence[Change], top: int) -> Iterator[RenderableType]:
    if not changes:
        return
    counts = ", ".join(f"{sum(change.status == status for change in changes)} {status}" for status in _SIGNS)
    table = narrow_table(["", "operator and module"], ["runs", "FLOP", "bytes", "differs in"])
    for change in _first(changes, top):
        old, new = change.before, change.after
        where = f"{change.phase} {change.module}".rstrip()
        table.add_row(_SIGNS[change.status], Text.assemble((change.op, "bold"), "\n", where, *_shapes(change)),
                      _pair(old, new, "count"), _pair(old, new, "flops"), _pair(old, new, "bytes"),
                      ", ".join(change.what))
    left = len(changes) - min(top, len(changes))
    yield section(f"{what}: {counts}", table, f"and {left} more; --top shows more, --json all" if left else "")


def _first(changes: Sequence[Change], top: int) -> list[Change]:
    """As many of each status in turn, so that a long list of new ones does not hide the others."""
    queues = [[change for change in changes if change.status == status] for status in _SIGNS]
    chosen = [change for rank in zip(*(queue + [None] * len(changes) for queue in queues), strict=False)
              for change in rank if change is not None]
    return sorted(chosen[:top], key=changes.index)


def _pair(old: Amount | None, new: Amount | None, field: str) -> str:
    shown = {"count": number, "flops": flop, "bytes": size}[field]
    values = [shown(getattr(side, field)) or "0" for side in (old, new) if side]
    return values[0] if len(set(values)) == 1 else "\n".join((values[0], f"-> {values[1]}"))


def _shapes(change: Change) -> list[tuple[str, str]]:
    """What differs in the axes or shapes, where each side has one that the other has not; axes by name."""
    if "shapes" not in change.what or change.before is None or change.after is None:
        return []
    gone = [text for text in change.before.details if text not in change.after.details]
    new = [text for text in change.after.details if text not in change.before.details]
    if len(gone) != 1 or len(new) != 1:
        return []
    old = next((axes for axes in change.before.axes if axes not in change.after.axes), {})
    now = next((axes for axes in change.after.axes if axes not in change.before.axes), {})
    if not old or not now:
        return [(f"\n- {gone[0]}\n+ {new[0]}", "dim")]
    told = (f"{name} {old.get(name, 'none')} => {now.get(name, 'none')}" for name in {**old, **now}
            if old.get(name) != now.get(name))
    return [("\n" + "; ".join(told), "dim")]
