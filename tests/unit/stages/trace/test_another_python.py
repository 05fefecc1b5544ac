"""A trace in a process of another interpreter: the same as in this one, when that has the same libraries."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from tests.support.config_release import LLAMA, release

pytest.importorskip("transformers")


@pytest.mark.slow
def test_the_class_of_the_library_in_another_process(tmp_path: Path) -> None:
    from dayzero.stages.trace import trace

    small = LLAMA | {"num_hidden_layers": 2, "transformers_version": "4.1.0"}
    found = release(tmp_path, small)
    here, there = trace(found), trace(found, python=Path(sys.executable))
    assert "the release declares transformers 4.1.0" in here.source
    assert not here.isolation and any("network" in line for line in there.isolation)
    plain = {"seconds": 0.0, "isolation": ()}
    assert msgspec.structs.replace(here, **plain) == msgspec.structs.replace(there, **plain)
