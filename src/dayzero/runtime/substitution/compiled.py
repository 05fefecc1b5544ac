"""A model whose modules run compiled. What is recorded at a module's border is not fused away: each stretch of code
between two borders is compiled by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from dayzero.errors import NotPossible

_KINDS = 1 << 16
"""Of one function: layers differ in their numbers, and none of them may fall back to what is not compiled."""


@contextlib.contextmanager
def compiled(model: Any, backend: str) -> Iterator[None]:
    """`backend`: of torch.compile; empty: nothing is done. Raises NotPossible at the end when nothing was compiled."""
    if not backend:
        yield
        return
    import torch._dynamo as compiler

    compiler.reset()
    before, plain = _frames(compiler), vars(model).get("forward")
    model.forward = torch.compile(model.forward, backend=backend)
    try:
        with compiler.config.patch(recompile_limit=_KINDS, accumulated_recompile_limit=_KINDS):
            yield
    finally:
        if plain is None:
            del model.forward
        else:
            model.forward = plain
        compiler.reset()
    if _frames(compiler) == before:
        raise NotPossible(f"torch.compile with {backend} compiled nothing of the model",
                          "set TORCH_LOGS=graph_breaks to see why")


def _frames(compiler: Any) -> int:
    """That were compiled until now."""
    return int(compiler.utils.counters["frames"]["ok"])
