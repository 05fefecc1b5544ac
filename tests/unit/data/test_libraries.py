"""Facts about what libraries removed."""

from __future__ import annotations

import importlib

import pytest
from packaging.version import Version

from dayzero.data.libraries import removals


def test_every_entry_is_complete() -> None:
    names = [one.name for one in removals()]
    assert len(set(names)) == len(names) > 0
    for one in removals():
        assert Version(one.since) < Version(one.until or "1000") and one.source


@pytest.mark.parametrize("one", removals(), ids=lambda one: one.name)
def test_the_installed_version_agrees(one) -> None:
    """Where a version is installed that an entry speaks of."""
    transformers = pytest.importorskip("transformers")
    here, (module, _, name) = Version(transformers.__version__), one.name.rpartition(".")
    if here < Version(one.since):
        pytest.skip("an older version is installed")
    try:
        there = hasattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        there = False
    assert there == (one.until is not None and here >= Version(one.until))
