"""Quantisation tables that say nothing that is understood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.config_release import LLAMA, on, release

from dayzero.stages.preflight import Case
from dayzero.stages.preflight.quant.schemes import quant_unsupported


@pytest.mark.parametrize(("table", "found"), [
    ({"quant_method": "foo"}, {("warning", "foo")}), ({"quant_algo": "W3X"}, {("warning", "W3X")}),
    ({"group_size": 64}, {("warning", "quantization_config")}), ({}, {("warning", "quantization_config")}),
    ({"quant_method": "foo", "kv_cache_scheme": {"num_bits": 8}}, {("warning", "foo")}),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, set()), ({"quant_method": "gptq", "bits": 4}, set()),
    ({"load_in_8bit": True, "quant_method": "bitsandbytes"}, set()), (None, set()),
    # a cache alone, as modelopt states it
    ({"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"}, set())])
def test_methods(tmp_path: Path, table: Any, found: set[tuple[str, str]]) -> None:
    case = Case(release(tmp_path / "r", LLAMA | {"quantization_config": table}), on())
    assert {(one.severity, one.subject) for one in quant_unsupported(case)} == found
