"""The numbers that a release and a target determine, by the keys that preflight promises."""

from __future__ import annotations

from math import isfinite
from typing import Any

from dayzero.ops import cache_bytes_per_token, state_bytes_per_sequence
from dayzero.placement import split_layers, valid_tp
from dayzero.placement.cache import allocated_per_token, allocation_of
from dayzero.placement.capacity import longest_sequence, sequences_of_stage
from dayzero.placement.held import weight_bytes
from dayzero.placement.memory import device_bytes, value_bytes
from dayzero.schema import Attention, FeedForward, ModelSpec

from .layout.fit import Fit
from .rule import Case
from .weights.library import ledger


def facts(case: Case) -> dict[str, Any]:
    """All facts; one that is not determined (no legal layout) is left out."""
    model, cluster = case.model, case.target.cluster
    numbers: dict[str, Any] = {
        "params_total": model.parameters,
        "params_active": model.parameters_active["no_embedding"],
        "params_active_definitions": model.parameters_active,
        "checkpoint_bytes": model.checkpoint_bytes,
        "layers": len(model.layers),
        **_experts(model),
        "attention_layers": _attention_layers(model),
        "kv_bytes_per_token": kv_bytes_per_token(model),
        **_allocated(case),
        "state_bytes_per_sequence": sum(state_bytes_per_sequence(attention) for attention in _attentions(model)),
        "valid_tp": valid_tp(model, case.target.engine, cluster.world_size),
        "usable_bytes": cluster.usable_bytes,
    }
    if case.fits:
        numbers["bytes_per_device"] = case.fits[0].causes
        numbers |= _held(case, case.fits[0])
        numbers["layout"] = case.fits[0].layout.text
    if case.coverage and not case.coverage.impossible:
        numbers["coverage"] = ledger(case.coverage)
    return numbers


def _held(case: Case, fit: Fit) -> dict[str, Any]:
    """Weights of the fullest device by what they belong to, how many sequences of the workload's length fit, and how
    long one may be."""
    model, engine, device = case.model, case.target.engine, case.target.cluster.device
    stages = [range(*layers) for layers in split_layers(model, fit.layout.pp)]
    parts = [weight_bytes(model, fit.layout, engine, allocation_of(engine), layers, device.arch) for layers in stages]
    fullest = next(part for part in parts if sum(part.values()) == fit.causes["weights"])
    room = min(sequences_of_stage(model, fit.layout, layers, case.target,
                                  device_bytes(model, fit.layout, layers, case.target)) for layers in stages)
    return {"weights_per_device": {part: size for part, size in fullest.items() if size},
            **({"max_sequences": int(room) * fit.layout.dp} if isfinite(room) else {}),
            "max_context": longest_sequence(model, fit.layout, stages, case.target)}


def _attentions(model: ModelSpec) -> list[Attention]:
    """The attention of every layer, in order."""
    return [model.attentions[layer.attention] for layer in model.layers]


def _blocks(model: ModelSpec) -> list[FeedForward]:
    return [model.feed_forwards[layer.feed_forward] for layer in model.layers]


def _experts(model: ModelSpec) -> dict[str, int]:
    blocks = [block for block in _blocks(model) if block.experts]
    if not blocks:
        return {"moe_layers": 0, "experts": 0, "top_k": 0, "shared_experts": 0}
    return {"moe_layers": len(blocks), "experts": max(block.experts for block in blocks),
            "top_k": max(block.top_k for block in blocks),
            "shared_experts": max(block.shared_experts for block in blocks)}


def _attention_layers(model: ModelSpec) -> dict[str, int]:
    """Layers by kind; `full` counts those with a latent cache too, which `latent` counts once more."""
    kinds = model.attention_layers()
    return {**kinds, "full": kinds.get("full", 0) + kinds.get("latent", 0)}


def _allocated(case: Case) -> dict[str, int]:
    """What the engine allocates for a token; of an engine of which that is not known, nothing."""
    rules = allocation_of(case.target.engine)
    return {"kv_bytes_per_token_allocated": allocated_per_token(case.model, rules)} if rules else {}


def kv_bytes_per_token(model: ModelSpec) -> int:
    """Bytes that the whole model caches for one more token of a long sequence, in which all windows are full."""
    return sum(cache_bytes_per_token(attention, value_bytes(model)) for attention in _attentions(model)
               if attention.window is None)
