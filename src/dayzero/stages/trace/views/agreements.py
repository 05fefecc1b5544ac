"""A trace against the graph from a card, for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from dayzero.schema.graph import PhaseName
from dayzero.stages.trace.agreement import PRODUCTS, Agreement, Remark, Row

from .columns import flop, narrow_table, section, size

_TOLD = {
    "code": "only in the code: what the card does not say",
    "axes": "with other lengths",
    "card": "only on the card: what the code does not run",
    "cut": "the same work in other operations",
}


def agreement_tables(found: Agreement, top: int = 20) -> Group:
    """By how much the two sides differ, operator by operator, then each difference; of each sort the dearest `top`."""
    return Group(*_parts(found, top))


def _parts(found: Agreement, top: int) -> Iterator[RenderableType]:
    yield Text(f"code: {found.code}\ncard: {found.card}")
    yield Text(f"parameters: {found.code_parameters:,} in the code, {found.card_parameters:,} on the card")
    for phase in dict.fromkeys(row.phase for row in found.rows):
        yield Text(f"{phase}: what computes differs by {_share(found.off(phase))} in FLOP", "bold")
        yield _rows(found, phase)
    for status, told in _TOLD.items():
        yield from _remarks(told, [remark for remark in found.remarks if remark.status == status], top)
    if not found.remarks:
        yield Text("\nnothing differs", "bold")


def _rows(found: Agreement, phase: PhaseName) -> Group:
    """Each operator and kind of layer; those that compute first."""
    table = narrow_table(["operator and layers"],
                         ["code FLOP", "card", "off", "code bytes", "card", "off"])
    rows = [row for row in found.rows if row.phase == phase]
    for row in sorted(rows, key=lambda row: (row.op not in PRODUCTS, -row.code_flops, -row.code_bytes)):
        table.add_row(_what(row), flop(row.code_flops), flop(row.card_flops), _share(row.flops_off),
                      size(row.code_bytes), size(row.card_bytes), _share(row.bytes_off))
    return section(f"{phase}: by the operators' definitions", table)


def _what(row: Row) -> Text:
    where = f"{row.layers} x {row.kind}" if row.kind else "in no layer"
    return Text.assemble((row.op, "bold"), "\n", where)


def _share(off: float | None) -> str:
    """`0.3 %`; `0` where both are the same, `new` where the card has none."""
    if off is None:
        return "new"
    return "0" if off == 0 else f"{100 * off:+.2g} %" if abs(off) < 1 else f"{100 * off:+,.0f} %"


def _remarks(told: str, remarks: Sequence[Remark], top: int) -> Iterator[RenderableType]:
    if not remarks:
        return
    table = narrow_table(["operator and module"], ["layers", "FLOP", "bytes"])
    for one in remarks[:top]:
        where = Text.assemble((one.op, "bold"), f" {'' if len(one.phases) > 1 else one.phases[0]}\n",
                              one.module or "(model)", "\n", (one.detail, "dim"))
        table.add_row(where, f"{one.layers:,}" if one.layers else "", _signed(one.flops, flop),
                      _signed(one.bytes, size))
    rest = len(remarks) - top
    yield section(f"{told}: {len(remarks)}", table, f"and {rest} more: --json has all" if rest > 0 else "")


def _signed(amount: float, shown: Callable[[float], str]) -> str:
    text = shown(abs(amount))
    return f"{'-' if amount < 0 else '+'}{text}" if text else ""
