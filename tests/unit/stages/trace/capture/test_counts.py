"""Operations and bytes of single calls, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dayzero.data.operators import operators
from dayzero.stages.trace.capture.counts import flops, moved, touched

aten = torch.ops.aten


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(("op", "args", "expected"), [
    ("mm", (meta(3, 4), meta(4, 5)), 2 * 3 * 4 * 5),
    ("addmm", (meta(5), meta(3, 4), meta(4, 5)), 2 * 3 * 4 * 5),
    ("bmm", (meta(2, 3, 4), meta(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
    ("mv", (meta(3, 4), meta(4)), 2 * 3 * 4),
    ("dot", (meta(7), meta(7)), 2 * 7),
    ("addmv", (meta(3), meta(3, 4), meta(4)), 2 * 3 * 4),
    ("_grouped_mm", (meta(32, 16), meta(4, 16, 8), meta(4, dtype=torch.int32)), 2 * 32 * 16 * 8),
    ("linalg_solve_triangular", (meta(2, 4, 4, dtype=torch.float32), meta(2, 4, 3, dtype=torch.float32)), 2 * 16 * 3),
    ("add", (meta(3), meta(3)), None),
])
def test_operations(op: str, args: tuple[Any, ...], expected: int | None) -> None:
    func = getattr(aten, op)
    kwargs = {"upper": True} if op == "linalg_solve_triangular" else {}
    assert flops(func, f"aten.{op}", args, kwargs, func(*args, **kwargs)) == expected


def test_operations_of_attention_with_fewer_kv_heads() -> None:
    query, key, value = meta(1, 8, 5, 16), meta(1, 2, 7, 16), meta(1, 2, 7, 12)
    counted = flops(aten.scaled_dot_product_attention, "aten.scaled_dot_product_attention", (query, key, value),
                    {"enable_gqa": True}, meta(1, 8, 5, 12))
    assert counted == 2 * 8 * 5 * 7 * (16 + 12)


def test_a_broadcast_axis_is_read_once() -> None:
    assert touched(meta(4, 6)) == 48
    assert touched(meta(4, 1).expand(4, 6)) == 8
    assert touched(meta(1, 1).expand(4, 6)) == 2
    assert touched(meta(0, 6)) == 0


def bytes_of(op: str, *inputs: torch.Tensor, out: torch.Tensor) -> int:
    return moved(op, operators(), inputs, [out])


def test_bytes() -> None:
    table, rows = meta(1000, 8), meta(3, dtype=torch.int64)
    assert bytes_of("aten.add", meta(4), meta(4), out=meta(4)) == 24
    assert bytes_of("aten.embedding", table, rows, out=meta(3, 8)) == 48 + 24 + 48  # three rows, not the table
    assert bytes_of("aten.copy_", meta(1000, 8), meta(8), out=meta(1000, 8)) == 16 + 16000  # written, not read
    assert bytes_of("aten.index_put_", table, rows, meta(3, 8), out=table) == 24 + 48 + 48
    assert bytes_of("aten.scatter", meta(10), rows, out=meta(10)) == 20 + 24 + 20  # out of place: all of it is written
    assert bytes_of("aten.add_", meta(4), meta(4), out=meta(4)) == 24


def test_what_has_no_rows_reads_no_weights() -> None:
    assert bytes_of("aten.mm", meta(0, 6144), meta(6144, 100), out=meta(0, 100)) == 0
    assert bytes_of("aten.mm", meta(2, 4), meta(4, 3), out=meta(2, 3)) == 2 * (8 + 12 + 6)


def test_bytes_of_experts_are_those_that_rows_can_reach() -> None:
    offsets = meta(16, dtype=torch.int32)
    for rows, reached in ((2, 2), (16, 16), (64, 16)):
        expected = 2 * rows * 8 + 2 * reached * 8 * 4 + 64 + 2 * rows * 4
        assert bytes_of("aten._grouped_mm", meta(rows, 8), meta(16, 8, 4), offsets, out=meta(rows, 4)) == expected
