"""Floating-point operations and bytes of one operator call.

Operations are those of matrix products, convolutions and attention; a multiply-add counts two, attention counts all
pairs of tokens (no saving for causality), and element-wise operators count none: their cost is their bytes. Bytes are
what the call must read and write if nothing is fused and nothing is cached; a broadcast argument is read once, a view
moves nothing. Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from dayzero.data.operators import Operators

from .kinds import plain

NEEDS_FORMULA = frozenset({"linear", "matmul", "attention", "experts", "conv"})
"""Kinds (by name alone) whose operators must have a formula."""


def _grouped(a: torch.Tensor, b: torch.Tensor, *_args: Any, **_kwargs: Any) -> int:
    """Rows [m, k] times one of the matrices [e, k, n]: each row meets one. With two plain matrices, [m, k] x [k, n],
    the groups cut k; with [e, m, k] x [e, k, n] it is a batched product."""
    return 2 * a.numel() * int(b.shape[-1])


def _vector(matrix: torch.Tensor, *_args: Any, **_kwargs: Any) -> int:
    """[m, k] times [k], or [k] times [k]."""
    return 2 * matrix.numel()


def _added_vector(_bias: torch.Tensor, matrix: torch.Tensor, *_args: Any, **_kwargs: Any) -> int:
    """[m, k] times [k], added to [m]."""
    return 2 * matrix.numel()


def _linear(x: torch.Tensor, weight: torch.Tensor, *_args: Any, **_kwargs: Any) -> int:
    """[..., k] times [n, k] transposed."""
    return 2 * x.numel() * weight.shape[0]


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_args: Any, **_kwargs: Any) -> int:
    """The library's formula for fused attention: 2 b h s_q s_k (d_qk + d_v)."""
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]


def _triangular(a: torch.Tensor, b: torch.Tensor, *_args: Any, **_kwargs: Any) -> int:
    """Triangular [..., n, n] solved for the right-hand sides [..., n, m]: n^2 m operations each (half a product)."""
    return b.numel() * int(a.shape[-1])


OWN: dict[str, Callable[..., int]] = {
    "aten._grouped_mm": _grouped,
    "aten._scaled_grouped_mm": _grouped,
    "transformers.grouped_mm_fallback": _grouped,
    "aten._int_mm": lambda a, b, *_, **__: 2 * a.numel() * int(b.shape[-1]),
    "aten.mv": _vector,
    "aten.dot": _vector,
    "aten.addmv": _added_vector,
    "aten.linear": _linear,
    "aten.linalg_solve_triangular": _triangular,
    "aten.scaled_dot_product_attention": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
}
"""Formulas that the library lacks."""


def flops(func: Any, op: str, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> int | None:
    """Operations of the call; None: the operator has no formula (which is right for an element-wise one)."""
    packet = getattr(func, "_overloadpacket", func)
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    formula = OWN.get(plain(op))
    return None if formula is None else int(formula(*args, **kwargs))


def touched(tensor: torch.Tensor) -> int:
    """Bytes of a tensor, axes that are broadcast (stride 0) counted once."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True) if tensor.layout is torch.strided else ()
    elements = prod(size if stride or size == 0 else 1 for size, stride in sizes)
    return elements * tensor.element_size()


def moved(op: str, table: Operators, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    """Bytes that the call reads and writes. Of stacked expert matrices those are read that the rows can reach, each row
    going to another expert while there are any (balanced routing). What gives no element reads nothing."""
    name = plain(op)
    reads = [touched(tensor) for tensor in inputs]
    writes = [touched(tensor) for tensor in outputs]
    if not inputs or not outputs:
        return sum(reads) + sum(writes)
    if not any(tensor.numel() for tensor in outputs):
        return 0
    if name in table.picks:
        reads[0] = min(reads[0], writes[0])
    elif op != name and name in table.overwrites:
        reads[0] = 0
    elif op != name and name in table.puts:
        values = max((tensor.numel() for tensor in inputs[1:]), default=inputs[0].numel())
        reads[0], writes[0] = 0, min(writes[0], values * outputs[0].element_size())
    elif OWN.get(name) is _grouped and inputs[0].dim() == 2 and inputs[1].dim() == 3:
        experts, rows = inputs[1].shape[0], inputs[0].shape[0]
        reads[1] = reads[1] * min(experts, rows) // experts
    return sum(reads) + sum(writes)
