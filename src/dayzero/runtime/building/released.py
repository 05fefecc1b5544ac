"""Builds a model with the code that its release brings along. Runs somebody else's code: only where that was asked for,
and in a confined process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from dayzero.errors import NotPossible, ReleaseError
from dayzero.runtime import own_code, stand_ins
from dayzero.runtime.assignment import DTYPES
from dayzero.runtime.library import LIBRARY_ERRORS, cause
from dayzero.runtime.older import keyword
from dayzero.runtime.own_code.devices import staying

from .config import architecture, stated
from .constructing import constructing


@dataclass(frozen=True)
class Folder:
    """A release on this disk."""

    name: str
    root: str
    config: dict[str, Any]
    hub: str = ""


def folder(root: Path) -> Folder:
    """Raises ReleaseError when its config cannot be read."""
    try:
        config = msgspec.json.decode((root / "config.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise ReleaseError(f"config.json cannot be read: {error}", "get the file again") from None
    return Folder(root.name, str(root), config)


def released(root: Path, dtype: str) -> Any:
    """The whole model. Raises NotPossible when the release brings no code, or when it cannot be run."""
    release = folder(root)
    named = own_code.entries(release)
    if named is None:
        raise NotPossible("the release brings no code of its own for its model", "run it without --trust-remote-code")
    loaded = own_code.load(release, named)
    try:
        config_class = loaded.config
        if config_class is None:
            from transformers import AutoConfig

            config_class = type(AutoConfig.for_model(str(release.config.get("model_type", ""))))
        config = stated(config_class, architecture(release.config))
        with constructing(values=True), staying():
            model = loaded.model._from_config(config, **keyword(getattr(torch, DTYPES[dtype])))
    except LIBRARY_ERRORS as error:
        raise NotPossible(f"the code of {release.name} cannot build its model: {cause(error)} "
                          f"({own_code.place(error, root)})", "look in its code there") from error
    stand_ins.install()
    return model
