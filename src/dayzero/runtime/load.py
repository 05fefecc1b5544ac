"""Load one rank's share of a release, and tell what it is."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from dayzero.errors import NotPossible, ReleaseError
from dayzero.schema import Layout

from .assignment import DTYPES
from .library import LIBRARY_ERRORS, auto_class, cause
from .mesh import distributed_config

_EMPTY_SPLIT = 0.95
_NAMED = 3


@dataclass(frozen=True)
class Blueprint:
    """A model without data: its class is imported, its size is known."""

    config: Any
    parameters: int
    stages: bool
    """Whether the library can cut it into pipeline stages: it looks for the layers right below the head."""

    def check(self, layout: Layout) -> None:
        """Raises NotPossible for a layout that the library cannot make of this model."""
        if layout.pp > 1 and not self.stages:
            raise NotPossible("transformers cannot cut this model into pipeline stages: its layers are in a part of it",
                              "choose another layout")


@dataclass(frozen=True)
class Loaded:
    """One rank's share."""

    model: Any
    layers: tuple[int, ...]
    parameters: int
    weight_bytes: int
    seconds: float
    unused: str
    """Which tensors of the files the model has no place for, in a few words; empty when it takes all."""


def blueprint(root: Path) -> Blueprint:
    """The whole model on the meta device. Raises NotPossible for a model that transformers has no code for."""
    logging.getLogger("transformers").setLevel(logging.WARNING)
    try:
        auto, config = _class_and_config(root)
        with torch.device("meta"):
            model = auto.from_config(config, trust_remote_code=False)
    except LIBRARY_ERRORS as error:
        raise NotPossible(f"transformers cannot build this model: {cause(error)}",
                          "use a version of transformers that supports it") from None
    return Blueprint(config, sum(parameter.numel() for parameter in model.parameters()),
                     hasattr(model.base_model, "layers"))


def _class_and_config(root: Path) -> tuple[Any, Any]:
    """The library's class that builds this model, and the model's config. Raises LIBRARY_ERRORS."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(root, local_files_only=True, trust_remote_code=False)
    return auto_class(type(config)) or AutoModelForCausalLM, config  # that one says what it can build


def load(root: Path, layout: Layout, dtype: str) -> Loaded:
    """The share of the rank that calls; every rank of a replica has to. Raises ReleaseError when the files do not fill
    it: the library would invent the rest."""
    from transformers import GenerationConfig

    started = time.perf_counter()
    options = {"distributed_config": config} if (config := distributed_config(layout)) else {}
    try:
        model, info = _class_and_config(root)[0].from_pretrained(
            root, dtype=getattr(torch, DTYPES[dtype]), local_files_only=True, use_safetensors=True,
            trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    except RuntimeError as error:
        refuse_unconverted(error)
        raise
    unused = check_filled(info)
    model.eval()
    # Only the end tokens: what a release suggests for sampling or penalties has no place in a comparison.
    model.generation_config = GenerationConfig(eos_token_id=model.generation_config.eos_token_id, do_sample=False)
    _own(model, root)
    parts = [local(parameter) for parameter in model.parameters()]
    return Loaded(
        model=model, layers=tuple(number for number, layer in enumerate(decoder_layers(model)) if has_weights(layer)),
        parameters=sum(part.numel() for part in parts), weight_bytes=sum(part.nbytes for part in parts),
        seconds=time.perf_counter() - started, unused=unused)


def check_filled(info: Mapping[str, Any]) -> str:
    """What the files hold beside the model, in a few words. `info` is the library's account of loading a rank's share,
    without tied weights and other stages' ones.

    Raises ReleaseError when a tensor is in no file, has another shape there, or could not be converted.
    """
    unused = sorted(info["unexpected_keys"])
    beside = f"the files hold {_some(unused)}, which the model has no place for" if unused else ""
    hint = f"{beside}: compare the names; or fetch the files again" if beside else (
        "fetch the files again, or tell the publishers")
    if missing := sorted(info["missing_keys"]):
        raise ReleaseError(f"the files do not hold {_some(missing)} of the model", hint)
    if mismatched := sorted(info["mismatched_keys"]):
        name, stored, wanted = mismatched[0]
        more = f" (and {len(mismatched) - 1} more have other shapes)" if len(mismatched) > 1 else ""
        raise ReleaseError(f"{name} is stored as {list(stored)}, but the model has {list(wanted)}{more}", hint)
    if errors := list(info["error_msgs"]):
        raise ReleaseError(f"a tensor cannot be loaded: {str(errors[0]).splitlines()[0]}", hint)
    return beside


def refuse_unconverted(error: BaseException) -> None:
    """Raises ReleaseError when the library could not make some of the model's tensors of those in the files.

    The error itself names none; the library's account of the loading, which it gives only to a logger, does.
    """
    accounts = (frame.f_locals.get("loading_info") for frame, _ in walk_tb(error.__traceback__))
    failures = next((found for each in accounts if (found := getattr(each, "conversion_errors", None))), None)
    if failures:
        last = [line for line in str(next(iter(failures.values()))).splitlines() if line.strip()][-2:]
        raise ReleaseError(f"{_some(sorted(failures))} cannot be made of the tensors in the files: {last[0].strip()}",
                           "look for tensors of it that are missing or have other shapes") from None


def _some(names: list[str]) -> str:
    """The first few of many names."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def check_split(layout: Layout, share: int, whole: int) -> str:
    """A warning when tensor parallelism splits next to nothing. Raises NotPossible when the layout splits nothing."""
    if layout.tp * layout.pp == 1 or share < _EMPTY_SPLIT * whole:
        return ""
    if share >= whole:
        raise NotPossible(f"transformers splits nothing of this model for {layout.text}", "choose another layout")
    return f"{layout.text} splits little: a rank holds {share / whole:.0%} of all parameters"


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


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor, gathered; every rank of the tensor's group has to ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _own(model: nn.Module, root: Path) -> None:
    """Copy what is mapped from the release's files into memory of this process, one tensor at a time."""
    mapped = mapped_ranges(root)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            address = local(tensor).data_ptr()
            if any(start <= address < end for start, end in mapped):
                tensor.data = tensor.data.clone()


def mapped_ranges(root: Path) -> list[tuple[int, int]]:
    """Addresses (start, end) at which weight files of the folder are mapped into this process. None where the system
    does not tell."""
    maps = Path("/proc/self/maps")
    files = {str(path.resolve()) for path in root.glob("*.safetensors")}
    ranges = []
    for line in maps.read_text().splitlines() if maps.exists() else ():
        addresses, _, _, _, _, *path = line.split(maxsplit=5)
        if path and path[0] in files:
            start, _, end = addresses.partition("-")
            ranges.append((int(start, 16), int(end, 16)))
    return ranges
