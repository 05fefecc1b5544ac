"""What a release's config says about its architecture, apart from how its weights are stored. Without torch."""

from __future__ import annotations

from typing import Any

NOT_ARCHITECTURE = ("quantization_config", "auto_map", "torch_dtype", "_name_or_path")
"""Config keys that do not change the unquantised architecture, or would run code; `torch_dtype` becomes `dtype`."""


def architecture(config: dict[str, Any]) -> dict[str, Any]:
    """The config without quantisation, remote code and choices of kernels (which may name code on a hub)."""
    kept = {key: value for key, value in config.items()
            if key not in NOT_ARCHITECTURE and not key.endswith(("attn_implementation", "experts_implementation"))}
    if "torch_dtype" in config:
        kept.setdefault("dtype", config["torch_dtype"])
    return {key: architecture(value) if key.endswith("_config") and isinstance(value, dict) else value
            for key, value in kept.items()}


def stated(config_class: Any, values: dict[str, Any]) -> Any:
    """The config, with all that the release states: what its class does not know and the library drops as well."""
    config = config_class.from_dict(values)
    for key, value in values.items():
        if key not in vars(config) and (key == "rope_scaling" or not hasattr(config, key)):
            vars(config)[key] = value
    return config
