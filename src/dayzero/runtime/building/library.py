"""Builds models. No parameter has memory before it is read; buffers have their values."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dayzero.errors import NotPossible
from dayzero.runtime.assignment import DTYPES
from dayzero.runtime.library import LIBRARY_ERRORS, auto_class, cause

from .constructing import constructing

_QUANTISED = "quantization_config"


@dataclass(frozen=True)
class Blueprint:
    """A model without weights."""

    model: nn.Module
    """In evaluation mode; parameters on the meta device."""
    config: Any
    """The library's, without quantisation: weights are dequantised when they are read."""
    parameters: int
    """Elements of all parameters, tied ones once."""


def blueprint(root: Path, dtype: str = "f32", *, own: bool = False) -> Blueprint:
    """The whole model, of the library's class or with `own` of the release's own, whose code then runs here.

    Raises NotPossible for one that the library has no code for, or whose code cannot be run.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    if own:
        from .released import released

        return _finished(root, released(root, dtype))
    logging.getLogger("transformers").setLevel(logging.WARNING)
    try:
        config = AutoConfig.from_pretrained(root, local_files_only=True, trust_remote_code=False)
        _without_quantisation(config)
        auto = auto_class(type(config)) or AutoModelForCausalLM
        with constructing(values=True):
            model = auto.from_config(config, dtype=getattr(torch, DTYPES[dtype]), trust_remote_code=False)
    except LIBRARY_ERRORS as error:
        raise NotPossible(f"transformers cannot build this model: {cause(error)}",
                          "use a version of transformers that supports it") from None
    return _finished(root, model)


def _finished(root: Path, model: Any) -> Blueprint:
    from transformers import GenerationConfig

    model.eval()
    # Only the end tokens: what a release suggests for sampling or penalties has no place in a comparison.
    model.generation_config = GenerationConfig(eos_token_id=_end_tokens(root, model), do_sample=False)
    return Blueprint(model, model.config, sum(parameter.numel() for parameter in model.parameters()))


def _without_quantisation(config: Any) -> None:
    for part in (config, config.get_text_config()):
        if hasattr(part, _QUANTISED):
            delattr(part, _QUANTISED)


def _end_tokens(root: Path, model: Any) -> Any:
    from transformers import GenerationConfig

    with contextlib.suppress(OSError):
        return GenerationConfig.from_pretrained(root, local_files_only=True).eos_token_id
    return getattr(getattr(model, "generation_config", None), "eos_token_id", None)


def decoder_layers(model: Any) -> nn.ModuleList:
    """The text model's repeated layers: its longest list of modules that is not inside one (as a list of experts is).

    Raises NotPossible when there is none.
    """
    lists: dict[str, nn.ModuleList] = {}
    for name, module in model.get_decoder().named_modules():
        if isinstance(module, nn.ModuleList) and not any(name.startswith(f"{outer}.") for outer in lists):
            lists[name] = module
    if not lists:
        raise NotPossible("the model has no list of layers", "report this model")
    return max(lists.values(), key=len)


def has_weights(module: nn.Module) -> bool:
    """Whether any of the module's weights are on this rank."""
    return next(module.parameters(), None) is not None
