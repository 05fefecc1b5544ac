"""Where weights, caches and activations lie: how a layout cuts a model, which layouts are legal, what they need."""

from .layouts import layouts
from .legality import RULES, blockers, findings, pipeline_stages, valid_tp
from .memory import (
    CAUSES,
    activation_bytes,
    attention_sequences,
    device_bytes,
    fullest_device,
    layer_cache_bytes,
    layer_state_bytes,
    prefill_tokens,
    sequence_bytes,
    sequences_per_replica,
)
from .split import experts_per_rank, rank_bytes, rank_parameters, stage_bytes, ways
from .stages import split_layers

__all__ = [
    "CAUSES", "RULES", "activation_bytes", "attention_sequences", "blockers", "device_bytes", "experts_per_rank",
    "findings", "fullest_device", "layer_cache_bytes", "layer_state_bytes", "layouts", "pipeline_stages",
    "prefill_tokens", "rank_bytes", "rank_parameters", "sequence_bytes", "sequences_per_replica", "split_layers",
    "stage_bytes", "valid_tp", "ways",
]  # fmt: skip
