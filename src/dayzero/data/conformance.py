"""The small models that a backend has to compute like the host (conformance.toml)."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def conformance_models() -> dict[str, dict[str, Any]]:
    """What a model is small of -> its config, `model_type` included."""
    return tomllib.loads((files("dayzero.data") / "conformance.toml").read_text(encoding="utf-8"))
