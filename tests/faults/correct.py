"""Runs that are right, each in another way: none of them may be called wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.faults.models import CONFIGS
from tests.faults.work import Way

ROUTED = ("qwen3_moe", "deepseek_v3", "gpt_oss", "qwen3_next", "kimi_linear", "glm_moe_dsa")
UNPACKED = ("qwen3_next", "kimi_linear", "gpt_oss")
"""Architectures whose code does not keep packed sequences apart."""
NO_SDPA = ("gpt_oss", "gemma2")
"""Architectures for which the library has no other attention here."""


@dataclass(frozen=True)
class Correct:
    """One correct run."""

    name: str
    kind: str
    precision: str = "bf16"
    way: Way = field(default_factory=Way)
    attention: str = "eager"
    experts: str = "eager"
    threads: int = 1
    layout: str = ""
    seed: int = 0
    """Of the weights."""
    tokens: int = 0
    """Seed of the tokens."""


def correct_runs() -> Iterator[Correct]:
    """All of them."""
    for kind in CONFIGS:
        for precision in ("bf16", "f32"):
            yield from _ways(kind, precision)
        yield Correct("f16", kind, "f16")
        yield Correct("two threads", kind, threads=2)
        for seed in (1, 2):
            yield Correct(f"weights of seed {seed}", kind, seed=seed)
        for tokens in (1, 2):
            yield Correct(f"tokens of seed {tokens}", kind, tokens=tokens)
        for layout in ("tp=2", "pp=2", "dp=2", *(("tp=2,ep=2", "dp=2,ep=2") if kind in ROUTED else ())):
            yield Correct(layout, kind, "bf16", layout=layout)


def _ways(kind: str, precision: str) -> Iterator[Correct]:
    yield Correct("alone", kind, precision)
    yield Correct("without a cache", kind, precision, Way(cache=False))
    yield Correct("batch 2, padded left", kind, precision, Way(batch=2))
    yield Correct("batch 4, padded left", kind, precision, Way(batch=4))
    yield Correct("batch 4, padded right", kind, precision, Way(batch=4, padding="right", cache=False))
    yield Correct("chunks of 16", kind, precision, Way(chunk=16))
    yield Correct("chunks of 7", kind, precision, Way(chunk=7))
    if kind not in UNPACKED:
        yield Correct("packed", kind, precision, Way(packed=True, cache=False))
    if kind not in NO_SDPA:
        yield Correct("fused attention", kind, precision, attention="sdpa")
    if kind in ROUTED:
        yield Correct("experts in batches", kind, precision, experts="batched_mm")
        yield Correct("experts in groups", kind, precision, experts="grouped_mm")
