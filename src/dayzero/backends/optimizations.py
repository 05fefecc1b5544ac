"""Which implementations of attention, norms and caches are used: what a context sets, and takes back at its end.

A model that is given to the context changes at once. What is loaded or generated inside of it asks `chosen()`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from dayzero.errors import UsageError, did_you_mean

from .base import Chosen

_NOBODY = Chosen()
_CHOSEN: ContextVar[Chosen] = ContextVar("chosen", default=_NOBODY)


def chosen() -> Chosen:
    """What the contexts that are open chose, the innermost first."""
    return _CHOSEN.get()


def check(wanted: Chosen, choices: Mapping[str, tuple[str, ...]], backend: str) -> None:
    """Raise UsageError for what a backend does not offer."""
    for what in wanted.__struct_fields__:
        name, known = getattr(wanted, what), choices.get(what, ())
        if name and name not in known:
            raise UsageError(f"backend {backend} has no {what.replace('_', ' ')} {name!r}",
                             f"{did_you_mean(name, known)}it has: {', '.join(known) or 'none'}")


@contextlib.contextmanager
def optimizations(wanted: Chosen, model: Any) -> Iterator[Chosen]:
    """What `Backend.optimizations` gives, once the choices were checked."""
    before = _CHOSEN.get()
    merged = Chosen(**{what: getattr(wanted, what) or getattr(before, what) for what in before.__struct_fields__})
    with contextlib.ExitStack() as stack:
        if wanted.attention:
            stack.enter_context(_attention(wanted.attention))
        if model is not None and wanted.attention:
            stack.enter_context(_attention_of(model, wanted.attention))
        if model is not None and wanted.norm:
            from .norms import norms_of

            stack.enter_context(norms_of(model, fused=wanted.norm == "fused"))
        if model is not None and wanted.linear:
            from .linears import ONEDNN, linears_of

            stack.enter_context(linears_of(model, onednn=wanted.linear == ONEDNN))
        if model is not None and wanted.kv_cache:
            stack.enter_context(_cache_of(model, wanted.kv_cache))
        token = _CHOSEN.set(merged)
        try:
            yield merged
        finally:
            _CHOSEN.reset(token)


@contextlib.contextmanager
def _attention(name: str) -> Iterator[None]:
    """The kernels that torch may take for its attention: for flash that one alone, which then raises for what it cannot
    compute; for eager the plain sum of operators; else all."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels = {"flash": [SDPBackend.FLASH_ATTENTION], "eager": [SDPBackend.MATH]}
    if name not in kernels:
        yield
        return
    with sdpa_kernel(kernels[name]):
        yield


@contextlib.contextmanager
def _attention_of(model: Any, name: str) -> Iterator[None]:
    """What the model's own attention calls: its file's plain code for eager, torch's attention for the others."""
    before = {id(config): (config, config._attn_implementation) for config in _configs(model)}
    model.set_attn_implementation("eager" if name == "eager" else "sdpa")
    try:
        yield
    finally:
        for config, implementation in before.values():
            config._attn_implementation = implementation


def _configs(model: Any) -> Iterator[Any]:
    """The configs that its modules look at."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            yield config


@contextlib.contextmanager
def _cache_of(model: Any, name: str) -> Iterator[None]:
    """Whether the library's own generation makes the cache that grows; a paged one is for who serves the model, which
    asks `chosen()`, since the library's generation of single batches has none."""
    config = model.generation_config
    before = config.cache_implementation
    config.cache_implementation = "dynamic" if name == "dynamic" else None
    try:
        yield
    finally:
        config.cache_implementation = before
