"""Shared by all tests: where the repository is, and the real model when `make test` has made it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("dayzero", deadline=None)  # how long an example takes is up to what else the machine does
settings.load_profile("dayzero")
ROOT = Path(__file__).parent.parent
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
                  XDG_DATA_HOME=str(ROOT / "tests" / "no-data"))  # measurements of this user decide nothing
sys.path.insert(0, str(ROOT))  # tests.support


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def real_model() -> Path:
    """SmolLM2-135M-Instruct, dequantised from Q4_1: a real release with weights."""
    folder = ROOT / "demo" / "SmolLM2-135M"
    if not (folder / "config.json").exists():
        pytest.skip("the demo model is not there: make demo-model")
    return folder
