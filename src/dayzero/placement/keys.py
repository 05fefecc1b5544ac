"""The config key that a model's dimension was read from: what findings name, because it is what a user can look up."""

from __future__ import annotations

import re

from dayzero.data.vocabulary import vocabulary
from dayzero.schema import ModelSpec

_USUAL = {
    "heads": "num_attention_heads", "linear_heads": "num_attention_heads",
    "output_groups": "o_groups", "linear_kv_heads": "linear_num_key_heads", "kv_heads": "num_key_value_heads",
    "dense_width": "intermediate_size", "expert_width": "moe_intermediate_size", "experts": "num_experts",
    "vocab_size": "vocab_size", "layers": "num_hidden_layers",
}
"""Names to show when the source of a value is not a config key (a tensor header, a default)."""
_STATED = re.compile(r"config\.json: (?P<path>[^\s)]+)")


def config_key(model: ModelSpec, value: str) -> str:
    """The config key that `value` was read from, such as num_attention_heads or linear_attn_config.num_heads."""
    return stated_key(model, value) or _USUAL[value]


def stated_key(model: ModelSpec, value: str) -> str:
    """The config key that `value` was read from or differs from, dotted from the table of the language model on; empty
    if the config has none."""
    stated = _STATED.search(model.sources.get(value, ""))
    parts = stated["path"].split(".") if stated else []
    tables = vocabulary().config.text
    first = next((index for index, part in enumerate(parts) if part not in tables), 0)
    return ".".join(parts[first:])
