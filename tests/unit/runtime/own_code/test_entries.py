"""Which classes of a release's own files are to be loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dayzero.runtime.library import file_of
from dayzero.runtime.own_code import Entries, entries, foreign, mistakable


def release(root: Any, auto_map: Any, hub: str = "") -> Any:
    return SimpleNamespace(config={"auto_map": auto_map}, root=str(root) if root else None, hub=hub)


@pytest.mark.parametrize(("auto_map", "found"), [
    ({"AutoConfig": "c.C", "AutoModel": "m.Base", "AutoModelForCausalLM": "m.Whole"}, Entries("c.C", "m.Whole")),
    ({"AutoModelForImageTextToText": "m.Seen"}, Entries("", "m.Seen")),
    ({"AutoModel": ["m.First", None]}, Entries("", "m.First")),
    ({"AutoConfig": "c.C"}, None),
    ({"AutoModel": "gone.Base"}, None),
    ({"AutoConfig": "gone.C", "AutoModel": "m.Base"}, None),
    ({"AutoModel": "../m.Base"}, None),
    ({"AutoModel": 3}, None), ("m.Base", None), (None, None),
])  # fmt: skip
def test_what_the_auto_map_names(tmp_path, auto_map, found) -> None:
    for name in ("m", "c"):
        (tmp_path / f"{name}.py").write_text("")
    assert entries(release(tmp_path, auto_map)) == found


@pytest.mark.parametrize(("hub", "found"), [
    ("org/name", Entries("c.C", "m.Base")), ("org/name@abc123", Entries("c.C", "m.Base")), ("org/other", None),
    ("", None)])  # fmt: skip
def test_code_of_another_repository_is_not_that_of_a_file_with_its_name(tmp_path, hub, found) -> None:
    for name in ("m", "c"):
        (tmp_path / f"{name}.py").write_text("")
    for auto_map in ({"AutoConfig": "org/name--c.C", "AutoModel": "org/name--m.Base"},
                     {"AutoConfig": "org/name--c.C", "AutoModel": "m.Base"}, {"AutoModel": ["org/name--m.Base", None]}):
        named = release(tmp_path, auto_map, hub)
        assert (entries(named) is None) == (found is None) == bool(foreign(named)) == mistakable(named)
    assert entries(release(tmp_path, {"AutoConfig": "org/name--c.C", "AutoModel": "org/name--m.Base"}, hub)) == found
    assert not mistakable(release(tmp_path, {"AutoModel": "org/name--gone.Base"}, hub))


def test_without_files_there_is_no_code() -> None:
    assert entries(release(None, {"AutoModel": "m.Base"})) is None


@pytest.mark.parametrize(("module", "file"), [
    ("transformers_modules.some_release.modeling_x", "modeling_x.py"),
    ("transformers_modules.some_release.parts.inner", "parts/inner.py"),
    ("transformers.models.llama.modeling_llama", "transformers/models/llama/modeling_llama.py"), ("torch", "torch.py"),
])  # fmt: skip
def test_files_of_a_release_are_told_without_the_package_they_are_put_in(module, file) -> None:
    assert file_of(module) == file
