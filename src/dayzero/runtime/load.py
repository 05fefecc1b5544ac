"""The library's own way to load a release, into one process: what everything else is compared with."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from torch import nn

from dayzero.errors import ReleaseError
from dayzero.text import some

from .assignment import DTYPES
from .building import decoder_layers
from .library import auto_class


@dataclass(frozen=True)
class Loaded:
    """A model with its weights."""

    model: Any
    layers: tuple[int, ...]
    parameters: int
    weight_bytes: int
    seconds: float
    unused: str
    """Which tensors of the files the model has no place for, in a few words; empty when it takes all."""


def _class_and_config(root: Path) -> tuple[Any, Any]:
    """The library's class that builds this model, and the model's config. Raises LIBRARY_ERRORS."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(root, local_files_only=True, trust_remote_code=False)
    return auto_class(type(config)) or AutoModelForCausalLM, config  # that one says what it can build


def load(root: Path, dtype: str) -> Loaded:
    """All of a release. Raises ReleaseError when the files do not fill it, NotPossible for a model that the library has
    no code for: it would invent the rest."""
    from transformers import GenerationConfig

    started = time.perf_counter()
    try:
        model, info = _class_and_config(root)[0].from_pretrained(
            root, dtype=getattr(torch, DTYPES[dtype]), local_files_only=True, use_safetensors=True,
            trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True)
    except RuntimeError as error:
        refuse_unconverted(error)
        raise
    unused = check_filled(info)
    model.eval()
    # Only the end tokens: what a release suggests for sampling or penalties has no place in a comparison.
    model.generation_config = GenerationConfig(eos_token_id=model.generation_config.eos_token_id, do_sample=False)
    _own(model, root)
    parts = list(model.parameters())
    return Loaded(
        model=model, layers=tuple(range(len(decoder_layers(model)))),
        parameters=sum(part.numel() for part in parts), weight_bytes=sum(part.nbytes for part in parts),
        seconds=time.perf_counter() - started, unused=unused)


def check_filled(info: Mapping[str, Any]) -> str:
    """What the files hold beside the model, in a few words. `info` is the library's account of loading a rank's share,
    without tied weights and other stages' ones.

    Raises ReleaseError when a tensor is in no file, has another shape there, or could not be converted.
    """
    unused = sorted(info["unexpected_keys"])
    beside = f"the files hold {some(unused)}, which the model has no place for" if unused else ""
    hint = f"{beside}: compare the names; or fetch the files again" if beside else (
        "fetch the files again, or tell the publishers")
    if missing := sorted(info["missing_keys"]):
        raise ReleaseError(f"the files do not hold {some(missing)} of the model", hint)
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
        raise ReleaseError(f"{some(sorted(failures))} cannot be made of the tensors in the files: {last[0].strip()}",
                           "look for tensors of it that are missing or have other shapes") from None


def _own(model: nn.Module, root: Path) -> None:
    """Copy what is mapped from the release's files into memory of this process, one tensor at a time."""
    mapped = mapped_ranges(root)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            address = tensor.data_ptr()
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
