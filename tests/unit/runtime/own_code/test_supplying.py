"""Names are given to a library where shipped code uses them and it lacks them, and nowhere else."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("torch")
from dayzero.data.supplied import Supplied
from dayzero.runtime.own_code import supplying


@pytest.fixture(name="library")
def library_fixture(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A library `lib` with one module, a table and a function."""
    lib, inner = types.ModuleType("lib"), types.ModuleType("lib.inner")
    lib.__path__, lib.inner = [], inner  # type: ignore[attr-defined]
    inner.kept, inner.TABLE, inner.call = "kept", {"a": 1}, lambda now: now  # type: ignore[attr-defined]
    inner.moved = "moved"  # type: ignore[attr-defined]
    for name in ("lib", "lib.inner", "lib.gone"):
        monkeypatch.setitem(sys.modules, name, {"lib": lib, "lib.inner": inner}.get(name, lib))
    del sys.modules["lib.gone"]
    return inner


def give(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str, *names: str) -> list[str]:
    table = [Supplied(name=name, gives=gives, what="w", source="s")
             for name, _, gives in (text.partition(" = ") for text in names)]
    monkeypatch.setattr(supplying, "supplied", lambda: table)
    (folder / "code.py").write_text(code)
    return [line.partition(": ")[0] for line in supplying.supply([folder / "code.py"])]


def test_only_what_is_used_and_absent_is_given(monkeypatch, tmp_path, library) -> None:
    names = ("lib.inner.absent = lib.inner.moved", "lib.inner.unused = lib.inner.moved",
             "lib.inner.kept = lib.inner.moved")
    code = "from lib.inner import absent, kept"
    assert give(monkeypatch, tmp_path, code, *names) == ["lib.inner.absent"]
    assert library.absent == "moved" and library.kept == "kept" and not hasattr(library, "unused")


def test_a_module_that_is_gone_comes_back_with_what_is_known(monkeypatch, tmp_path, library) -> None:
    assert give(monkeypatch, tmp_path, "from lib.gone import name", "lib.gone.name = lib.inner.moved") == [
        "lib.gone.name"]
    from lib.gone import name  # type: ignore[import-not-found]

    assert name == "moved"


def test_a_class_that_a_library_does_not_have_yet_is_not_made(monkeypatch, tmp_path, library) -> None:
    code = "from lib.inner import Config\nConfig().name"
    assert give(monkeypatch, tmp_path, code, "lib.inner.Config.name = lib.inner.moved") == []
    assert not hasattr(library, "Config") and "lib.inner.Config" not in sys.modules


def test_a_library_that_takes_classes_as_they_are(monkeypatch) -> None:
    from transformers import PreTrainedModel

    from dayzero.runtime.own_code.adapting import adapt

    shipped = types.ModuleType("shipped.modeling")
    shipped.Model = type("Model", (PreTrainedModel,), {  # type: ignore[attr-defined]
        "_tied_weights_keys": ["lm_head.weight"], "__module__": "shipped.modeling"})
    monkeypatch.setitem(sys.modules, "shipped.modeling", shipped)
    with monkeypatch.context() as older:
        older.delattr(PreTrainedModel, "get_expanded_tied_weights_keys")
        assert adapt("shipped") == () and shipped.Model._tied_weights_keys == ["lm_head.weight"]
    assert adapt("shipped") and isinstance(shipped.Model._tied_weights_keys, dict)


def test_entries_of_tables_and_arguments(monkeypatch, tmp_path, library) -> None:
    library.adapted = lambda function: lambda then, now: function(then + now)
    names = ("lib.inner.TABLE[b] = lib.inner.moved", "lib.inner.TABLE[a] = lib.inner.moved",
             "lib.inner.call(then) = lib.inner.adapted", "lib.inner.call(now) = lib.inner.adapted",
             "lib.inner.no_such(then) = lib.inner.adapted")
    code = "from lib.inner import TABLE, call, no_such\nTABLE['a'], TABLE['b']\ncall(now=1, then=2)"
    assert give(monkeypatch, tmp_path, code, *names) == ["lib.inner.TABLE[b]", "lib.inner.call(then)"]
    assert library.TABLE == {"a": 1, "b": "moved"} and library.call(then=1, now=2) == 3


def test_files_that_are_no_python_ask_for_nothing(monkeypatch, tmp_path, library) -> None:
    assert give(monkeypatch, tmp_path, "absent (", "lib.inner.absent = lib.inner.moved") == []
