"""What an operation costs at another workload, by hand."""

from __future__ import annotations

import pytest

from dayzero.errors import UsageError
from dayzero.expression import ExpressionError
from dayzero.ops import axes_of, cost
from dayzero.schema import Operation


def operation(op: str, count: int, **axes: float | str) -> Operation:
    return Operation(op=op, module="model.layers.{L}.x", phase="decode", count=count, axes=axes, dtype="bf16", flops=0,
                     bytes=0, counted_flops=0, counted_bytes=0, calls={})


LINEAR = operation("linear", 3, tokens="batch * tokens", groups=1, inner=5, outer=7, item=2, weight_item=0.5)
SLIDING = operation("attention", 2, sequences="batch", tokens="tokens", context="context", window=128,
                    keys="min(context, 127) + tokens", heads=4, kv_heads=2, head_dim=16, v_head_dim=16,
                    item=2)  # fmt: skip


def test_a_linear_costs_its_products_and_its_weights() -> None:
    found = cost(LINEAR, batch=2, tokens=11)
    assert found.flops == 3 * 2 * 22 * 35
    assert found.bytes == 3 * (22 * 5 * 2 + 35 * 0.5 + 22 * 7 * 2)


def test_a_window_bounds_what_a_sliding_layer_sees() -> None:
    assert axes_of(SLIDING, batch=1, tokens=1, context=1000)["keys"] == 128
    assert axes_of(SLIDING, batch=1, tokens=1, context=10)["keys"] == 11
    near, far = (cost(SLIDING, batch=1, tokens=1, context=context) for context in (1000, 50_000))
    assert near == far
    # 2 layers of 4 heads, 128 pairs of 16 + 16 values each.
    assert near.flops == 2 * 2 * 4 * 32 * 128


def test_faults_are_told() -> None:
    with pytest.raises(UsageError, match="no operator is named"):
        cost(operation("wrong", 1), batch=1, tokens=1)
    with pytest.raises(ExpressionError, match="needs width"):
        cost(operation("linear", 1, tokens="width"), batch=1, tokens=1)
