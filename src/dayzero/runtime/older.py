"""What transformers called otherwise before it got the names that this program uses. Needs torch and transformers.

    keyword(dtype)        for from_config: `torch_dtype` before 4.56
    stated_dtype(config)  of a config, or of its text part: an attribute `torch_dtype` before 4.56
"""

from __future__ import annotations

from typing import Any

import torch
from packaging.version import Version

_DTYPE = Version("4.56.0.dev0")
"""Version in which `torch_dtype` became `dtype`."""


def keyword(dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The argument that builds a model in this dtype."""
    return {_name(): dtype}


def stated_dtype(config: Any) -> torch.dtype | None:
    """What the text part of a config states, else the config."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config  # since 4.45
    for part in (text, config):
        stated = getattr(part, _name(), None)
        stated = getattr(torch, stated, None) if isinstance(stated, str) else stated
        if isinstance(stated, torch.dtype):
            return stated
    return None


def _name() -> str:
    import transformers

    return "dtype" if Version(transformers.__version__) >= _DTYPE else "torch_dtype"
