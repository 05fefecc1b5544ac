"""The table of names that are supplied: its form, and that what it gives is there."""

from __future__ import annotations

import importlib

import pytest

from dayzero.data.supplied import Supplied, supplied


@pytest.mark.parametrize(("name", "parts"), [
    ("a.b.function", ("a.b", "function", "", "")), ("a.b.TABLE[key]", ("a.b", "TABLE", "key", "")),
    ("a.b.function(argument)", ("a.b", "function", "", "argument")),
])  # fmt: skip
def test_the_three_forms_of_a_name(name, parts) -> None:
    entry = Supplied(name=name, gives="x.y", what="it", source="test")
    assert (entry.owner, entry.attribute, entry.key, entry.argument) == parts
    assert entry.words == set(parts[1:]) - {""}


@pytest.mark.parametrize("name", ["alone", "a.b(c", "a.b[]", "a.b[c](d)", ""])
def test_other_names_are_refused(name) -> None:
    with pytest.raises(ValueError, match="is no name"):
        Supplied(name=name, gives="x.y", what="it", source="test")


def test_the_shipped_table() -> None:
    names = [entry.name for entry in supplied()]
    assert len(names) == len(set(names)) and all(entry.source and entry.what for entry in supplied())


def test_all_of_ours_that_is_given_exists() -> None:
    pytest.importorskip("torch")
    for entry in supplied():
        module, _, name = entry.gives.rpartition(".")
        if module.startswith("dayzero."):
            assert hasattr(importlib.import_module(module), name), entry.gives
