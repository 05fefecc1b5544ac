"""Stored dtypes against those of an engine's parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.told import teller

Q = "model.layers.4.self_attn.indexer.wq_b.weight"


@pytest.mark.parametrize(("file", "declared", "severity"), [
    ("I8", "BF16", "error"),  # vllm-project/vllm-ascend#12675
    ("F8_E4M3", "bfloat16", "error"), ("BF16", "F8_E4M3", "error"), ("I8", "F8_E4M3", "error"),
    ("F32", "BF16", "error"), ("BF16", "float16", "error"), ("BF16", "F32", ""), ("I8", "torch.int8", ""),
    ("U8", "F8_E8M0", ""), ("BF16", "torch.bfloat16", ""), ("F8_E4M3", "float8_e4m3fn", ""),
])
def test_dtypes(tmp_path: Path, file: str, declared: str, severity: str) -> None:
    found = teller(tmp_path, "weights-dtype")({Q: ((8, 8), file)}, partial=True, declares={Q: ([8, 8], declared)})
    assert [(finding.severity, finding.subject, finding.facts) for finding in found] == (
        [(severity, Q, {"file": file, "declared": declared})] if severity else [])
