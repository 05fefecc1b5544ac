"""In which dtype a release runs, and what that makes of weights that are stored in another way."""

from __future__ import annotations

from dayzero.runtime.assignment import DTYPES
from dayzero.schema import ModelSpec

_DECODED = "bf16"
"""What quantised weights are decoded to."""


def dtype_of(model: ModelSpec) -> str:
    """bf16, f16 or f32: the release's own, bf16 for one whose computations have another one."""
    return model.dtype if model.dtype in DTYPES else _DECODED


def decoded(model: ModelSpec, dtype: str) -> str:
    """Which weights are not run as they are stored, in a few words; empty: none."""
    whole = sum(family.parameters for family in model.families if not family.role.startswith("unused."))
    found: dict[str, int] = {}
    for family in model.families:
        if family.parameters and family.scheme not in DTYPES and not family.role.startswith("unused."):
            found[family.scheme] = found.get(family.scheme, 0) + family.parameters
    stored = " and ".join(f"{scheme} ({count / whole:.0%})" for scheme, count in sorted(found.items()))
    return f"parameters stored as {stored} were decoded to {dtype}" if found else ""
