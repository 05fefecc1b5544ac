"""Builds a release's model without weights: transformers' own class for it, on the meta device.

Code that a release brings along is never executed. Needs torch and transformers.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from dayzero.errors import NotPossible
from dayzero.runtime.library import AUTO_CLASSES, LIBRARY_ERRORS, auto_class, cause
from dayzero.schema import Release

NOT_ARCHITECTURE = ("quantization_config", "auto_map", "torch_dtype", "_name_or_path")
"""Config keys that do not change the unquantised architecture, or would run code; `torch_dtype` becomes `dtype`."""
TOLERANCE = 1e-3
"""Share by which declared parameters may differ from those of the files before it is told."""


class Built(NamedTuple):
    """A model on the meta device."""

    model: torch.nn.Module
    """In evaluation mode; its parameters have shapes and no data."""
    source: str
    """Library, version, class, and what differs from the release."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No network, no progress bars and no warnings of the libraries while it lasts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import huggingface_hub.constants as hub
        from transformers.utils import logging

        verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        offline, variable = hub.HF_HUB_OFFLINE, os.environ.get("HF_HUB_OFFLINE")
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        hub.HF_HUB_OFFLINE, os.environ["HF_HUB_OFFLINE"] = True, "1"
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()
            hub.HF_HUB_OFFLINE = offline
            os.environ.pop("HF_HUB_OFFLINE")
            if variable is not None:
                os.environ["HF_HUB_OFFLINE"] = variable


def build(release: Release) -> Built:
    """The model of a release. Raises NotPossible when the library has no class for it or cannot build it."""
    import transformers

    config_class, inferred = _config_class(release)
    values = architecture(release.config)
    if inferred:
        values.pop("model_type", None)
    auto = _auto_class(config_class, release)
    try:
        config = config_class.from_dict(values)
        with torch.device("meta"):
            model = auto.from_config(config, dtype=_dtype(config, release))
    except LIBRARY_ERRORS as error:
        raise NotPossible(
            f"transformers {transformers.__version__} cannot build {release.name}: {cause(error)}",
            "a newer transformers may know this config") from error
    model.eval()
    return Built(model, _source(release, model, inferred))


def architecture(config: dict[str, Any]) -> dict[str, Any]:
    """The config without quantisation, remote code and choices of kernels (which may name code on a hub)."""
    kept = {key: value for key, value in config.items()
            if key not in NOT_ARCHITECTURE and not key.endswith(("attn_implementation", "experts_implementation"))}
    if "torch_dtype" in config:
        kept.setdefault("dtype", config["torch_dtype"])
    return {key: architecture(value) if key.endswith("_config") and isinstance(value, dict) else value
            for key, value in kept.items()}


def parameters(model: torch.nn.Module) -> int:
    """Parameters that the code declares, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _config_class(release: Release) -> tuple[Any, bool]:
    """The library's config class, and whether it was found by the architecture's name instead of the model_type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = str(release.config.get("model_type", ""))
    if model_type in CONFIG_MAPPING:
        return CONFIG_MAPPING[model_type], False
    import transformers

    for name in release.model.architectures:
        config_class = getattr(getattr(transformers, name, None), "config_class", None)
        if config_class is not None:
            return config_class, True
    own_code = "auto_map" in release.config or any(file.role == "code" for file in release.files)
    brings = "; the release brings its own code, which is not executed" if own_code else ""
    raise NotPossible(
        f"transformers {transformers.__version__} has no class for model_type {model_type!r}{brings}",
        "trace it with a transformers that supports it natively")


def _auto_class(config_class: Any, release: Release) -> Any:
    import transformers

    auto = auto_class(config_class)
    if auto is None:
        raise NotPossible(
            f"transformers {transformers.__version__} has no generating model for {release.model.model_type!r}",
            f"dayzero traces what {' or '.join(AUTO_CLASSES)} builds")
    return auto


def _dtype(config: Any, release: Release) -> torch.dtype:
    """The config's dtype, else that of most weights, else bf16 (in which quantised releases compute)."""
    stated = config.get_text_config().dtype or getattr(config, "dtype", None)
    if isinstance(stated, torch.dtype):
        return stated
    names = {"f32": torch.float32, "f16": torch.float16}
    return names.get(release.model.dtype, torch.bfloat16)


def _source(release: Release, model: torch.nn.Module, inferred: bool) -> str:
    import transformers

    name, declared, stored = type(model).__name__, parameters(model), release.model.parameters
    notes = [f"transformers {transformers.__version__} {name}"]
    stated = release.model.architectures
    differs = stored > 0 and abs(declared - stored) > TOLERANCE * stored
    if inferred and differs:
        raise NotPossible(
            f"the release names {name}, but that class declares {declared:,} parameters and the files hold {stored:,}",
            "trace it with a transformers that supports its model_type")
    if inferred:
        notes.append(f"chosen by the name of the architecture (model_type {release.model.model_type!r} is unknown)")
    elif stated and name not in stated:
        notes.append(f"the release names {', '.join(stated)}")
    if _quantised(release.config):
        notes.append("quantisation left out: the unquantised architecture was traced")
    if differs:
        notes.append(f"declares {declared:,} parameters, the files hold {stored:,}")
    return "; ".join(notes)


def _quantised(config: dict[str, Any]) -> bool:
    return bool(config.get("quantization_config")) or any(
        _quantised(value) for value in config.values() if isinstance(value, dict))
