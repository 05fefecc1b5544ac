"""What graph capture would stumble over, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from dayzero.stages.trace.breaks import Break, Exported
from dayzero.units import format_seconds

from .columns import narrow_table, section


def breaks_tables(found: Sequence[Break], exported: Exported | None = None, top: int = 20) -> Group:
    """What a real export said, if one was made; then what is foreseen: what ran while tracing, then what may run."""
    return Group(*_parts(found, exported, top))


def _parts(found: Sequence[Break], exported: Exported | None, top: int) -> Iterator[RenderableType]:
    if exported is not None:
        yield _outcome(exported)
    for certain, title in ((True, "torch.compile and torch.export stumble here"),
                           (False, "they would here, if it runs (only seen in the source)")):
        rows = [each for each in found if each.certain == certain]
        if not rows:
            continue
        table = narrow_table(["place and what", "compile", "export"], [])
        for each in rows[:top]:
            table.add_row(Text.assemble((each.place, "bold"), "\n", each.what), Text(each.compile), Text(each.export))
        left = len(rows) - top
        yield section(f"{title}: {len(rows)}", table, f"and {left} more; --top shows more" if left > 0 else "")
    if not found:
        yield Text("\nnothing is foreseen that torch.compile or torch.export would stumble over", "bold")


def _outcome(exported: Exported) -> Text:
    kinds = f" ({', '.join(exported.kinds)})" if exported.kinds else ""
    what = f"torch.export of the first {exported.layers} layers{kinds}"
    took = f"in {format_seconds(exported.seconds)}"
    if not exported.error:
        return Text(f"\n{what}: works {took}, {exported.nodes:,} nodes", "bold green")
    at = f" at {exported.place}" if exported.place else ""
    return Text(f"\n{what}: fails{at} after {format_seconds(exported.seconds)}\n{exported.error}", "bold red")
