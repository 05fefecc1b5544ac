from __future__ import annotations

import pytest

from dayzero.errors import UsageError
from dayzero.registry import Registry


def test_lazy_entries_are_imported_once() -> None:
    registry: Registry[object] = Registry("thing")
    registry.add("prod", "math:prod")
    import math

    assert registry.get("prod") is math.prod and "prod" in registry and registry.names() == ("prod",)


def test_two_of_one_name() -> None:
    registry: Registry[int] = Registry("rule")
    registry.add("a", 1)
    with pytest.raises(ValueError, match="two rules are named 'a'"):
        registry.add("a", 2)


def test_unknown_name_suggests() -> None:
    registry: Registry[int] = Registry("rule")
    registry.add("shard-heads", 1)
    with pytest.raises(UsageError) as error:
        registry.get("shard-head")
    assert error.value.hint == 'did you mean "shard-heads"? known: shard-heads'
