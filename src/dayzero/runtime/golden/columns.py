"""Columns of keys: what chooses tokens by their number counts a row of a batch from its start, padding and all."""

from __future__ import annotations

from .dump import Dump


def columns_before(dump: Dump) -> dict[int, int]:
    """{sequence: columns before its first token} in the row of the batch that it is in: padding on the left, or what is
    packed before it."""
    found: dict[int, int] = {}
    for passes in dump.passes.values():
        for each in passes.values():
            at, width = 0, max([1, *each.shape[-1:]])
            for rows in each.rows:
                if rows.sequence >= 0 and rows.first == 0:
                    found.setdefault(rows.sequence, at % width)
                at += rows.count
    return found
