"""Registers a plain torch function as a torch operator that tracers see as one call."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch.library import Library
from torch.utils.flop_counter import register_flop_formula

NAMESPACE = "dayzero"
"""Of all operators here."""
_LIBRARY: Any = Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]


def operator(
    schema: str, *, shapes: Callable[..., Any], flops: Callable[..., float]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: register the function as the operator of that schema (`name(arguments) -> results`).

    `shapes` takes the same arguments, without values, and gives empty results; `flops` takes them too and gives the
    operations of the call. The function itself runs on every device. What it returns must not be one of its arguments.
    Returns the torch operator: calling that is what makes a tracer see it.
    """
    name = schema.partition("(")[0]

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _LIBRARY.define(schema)
        _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", shapes, lib=_LIBRARY)
        packet = getattr(getattr(torch.ops, NAMESPACE), name)

        def count(*args: Any, out_val: Any = None, out_shape: Any = None, **kwargs: Any) -> int:
            return int(flops(*args, **kwargs))

        register_flop_formula(packet, get_raw=True)(count)
        called: Callable[..., Any] = packet.default
        return called

    return register


def lengths(cu_seqlens: torch.Tensor, total: int) -> list[int]:
    """Lengths of packed sequences from their offsets [n + 1]; on a device without values the `total` tokens are taken
    to be divided evenly."""
    count = cu_seqlens.shape[0] - 1
    if cu_seqlens.device.type == "meta":
        return [total // count + (i < total % count) for i in range(count)]
    ends = cu_seqlens.tolist()
    return [end - start for start, end in pairwise(ends)]


def activate(x: torch.Tensor, name: str) -> torch.Tensor:
    """The activation of that name, as kernel libraries call it; empty: none. Raises ValueError for another."""
    if not name:
        return x
    if name in ("silu", "swish"):
        return torch.nn.functional.silu(x)
    if name == "sigmoid":
        return torch.sigmoid(x)
    if name == "gelu":
        return torch.nn.functional.gelu(x)
    if name == "relu":
        return torch.relu(x)
    raise ValueError(f"no activation {name!r}")
