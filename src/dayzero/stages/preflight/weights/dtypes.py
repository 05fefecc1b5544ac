"""Rule about the dtypes of tensors and of the parameters that an engine declares for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from dayzero.schema import Finding
from dayzero.stages.preflight.rule import Case, rule

from .loader import Arrival
from .loading import MANY, Declarations, loading

_BYTES = {"U8", "I8", "F4", "F8_E8M0", "F6_E2M3", "F6_E3M2"}
"""dtypes under which the same packed bytes go."""
_FLOATS = {"F64": (11, 52), "F32": (8, 23), "BF16": (8, 7), "F16": (5, 10)}
"""Bits of exponent and of mantissa (IEEE 754; bfloat16)."""
_SPELLINGS = {"BFLOAT16": "BF16", "FLOAT16": "F16", "HALF": "F16", "FLOAT32": "F32", "FLOAT": "F32", "FP32": "F32",
              "FP16": "F16", "FLOAT64": "F64", "INT8": "I8", "UINT8": "U8", "INT32": "I32", "INT64": "I64",
              "FLOAT8_E4M3FN": "F8_E4M3", "FP8": "F8_E4M3", "F8_E4M3FN": "F8_E4M3", "FLOAT8_E5M2": "F8_E5M2",
              "FLOAT8_E8M0FNU": "F8_E8M0", "FLOAT8_E4M3FNUZ": "F8_E4M3FNUZ"}


@rule("weights-dtype")
def weights_dtype(case: Case) -> Iterator[Finding]:
    """A tensor is stored in another dtype than the engine's parameter for it has.

    ## What
    The header's dtype against the one that the engine declares. Integers or 8-bit floats against wider floats mean
    nothing without their scale, and a float may lose digits or range. One that becomes wider is not reported, nor is
    another name for the same packed bytes.

    ## Why
    Loaders copy and cast. An integer 37 becomes the weight 37.0.

    ## Example
    An indexer projection stored as I8 with a scale, declared in BF16 (vllm-project/vllm-ascend#12675).

    ## How to fix
    Build the module with the quantisation that the files have.
    """
    entries = case.target.engine.facts.declares
    if not entries or not case.has_tensors:
        return
    declared = Declarations(entries)
    for arrival in loading(case).arriving:
        if declared.module_known(arrival.pattern):
            odd: Mapping[str, list[int]] = defaultdict(list)
            for row in arrival.rows:
                entry = declared.entry(arrival.name(int(row)), arrival)
                if entry is not None and _differs(arrival.group.dtype, entry.dtype):
                    odd[entry.dtype].append(int(row))
            for dtype, rows in odd.items():
                yield from _other_dtype(Arrival(arrival.group, np.array(rows), arrival.pattern), dtype)


def _standard(dtype: str) -> str:
    name = dtype.removeprefix("torch.").upper()
    return _SPELLINGS.get(name, name)


def _differs(file: str, declared: str) -> bool:
    stored, wanted = _standard(file), _standard(declared)
    if stored == wanted or {stored, wanted} <= _BYTES:
        return False
    if stored in _FLOATS and wanted in _FLOATS:
        return any(have > room for have, room in zip(_FLOATS[stored], _FLOATS[wanted], strict=True))
    return True


def _other_dtype(arrival: Arrival, declared: str) -> Iterator[Finding]:
    file = arrival.group.dtype
    rounds = _standard(file) in _FLOATS and _standard(declared) in _FLOATS
    for part in ([arrival.where(arrival.rows == row) for row in arrival.rows] if len(arrival.rows) <= MANY
                 else [arrival]):
        yield Finding(
            rule="weights-dtype", severity="error", subject=part.subject,
            message=f"{part.subject} is stored as {file}, and the engine's parameter is {declared}"
                    + (": values are rounded" if rounds else ": its values mean something else there"),
            hint="build the module in the dtype that is stored", facts={"file": file, "declared": declared})
