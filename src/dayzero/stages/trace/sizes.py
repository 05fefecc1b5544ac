"""Sizes that cannot be traced: workloads that no number stands for, and models that would not be built in minutes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dayzero.errors import ReleaseError, UsageError
from dayzero.schema import ModelSpec, OpGraph, Release

MOST_LAYERS = 5_000
"""Layers of a model that is built; the deepest that are known have hundreds."""
_NUMBERS = 2**63
"""Above all operations and bytes that are told, and all bytes of a tensor that torch has."""
_WIDEST = 8
"""Bytes of the widest elements."""
_DEPTHS = ("layers", "layer", "depth")
"""Ends of the names of config keys that count layers."""


def too_deep(release: Release) -> None:
    """Raise ReleaseError where the config counts more layers than are built, in whichever part of the model."""
    for key, layers in _depths(release.config):
        if layers > MOST_LAYERS:
            raise ReleaseError(f"{key} is {layers:,}, and models of at most {MOST_LAYERS:,} layers are built",
                               f"correct {key} in the config")


def told(graph: OpGraph) -> OpGraph:
    """The graph. Raises UsageError where its phases come to more than is told in numbers."""
    for phase in graph.phases.values():
        if max(phase.flops, phase.bytes) >= _NUMBERS:
            raise too_large(phase.batch, phase.tokens, phase.context)
    return graph


def may_be_too_large(model: ModelSpec, batch: int, tokens: int, context: int) -> bool:
    """Whether a tensor as wide as the vocabulary, the hidden state, or the scores of all heads can have more bytes than
    torch counts: then that is why the model fails."""
    length = max(tokens, context + 1)
    heads = max((kind.heads for kind in model.attentions.values()), default=1)
    return batch * length * max(model.vocab_size, model.hidden_size, heads * length) * _WIDEST >= _NUMBERS


def too_large(batch: int, tokens: int, context: int) -> UsageError:
    """What to raise for such a workload."""
    return UsageError(f"{batch:,} sequences of {tokens:,} new tokens after {context:,} are more than can be counted",
                      "give a smaller --batch, --tokens or --context")


def _depths(config: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _depths(value)
        elif isinstance(value, int) and key.endswith(_DEPTHS):
            yield key, value
