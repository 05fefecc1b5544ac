"""Whether names are in installed packages: asked of packages that every installation has, and of made ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from dayzero.stages.preflight.code.installed import Installed


def test_names_that_are_there() -> None:
    pairs = [("msgspec", "Struct"), ("msgspec.json", "decode"), ("numpy", "ndarray"), ("json", None),
             ("os.path", "join"), ("rich.table", "Table"), ("numpy.linalg", "norm"), ("huggingface_hub", "HfApi"),
             ("collections.abc", "Callable")]
    assert Installed().absent(pairs) == set()


def test_names_that_are_not_there() -> None:
    pairs = {("msgspec", "Strukt"), ("numpy.linalg.nothing", "x"), ("json", "lods"), ("huggingface_hub", "NoApi")}
    assert Installed().absent([*pairs, ("json", "loads")]) == pairs


def test_a_package_that_cannot_be_loaded_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "breaks.py").write_text("import package_that_nobody_has\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Installed().absent([("breaks", "x")]) == set()


def test_what_a_release_ships_is_not_installed_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the release's folder is on the path, as when Python is started in it."""
    witness = tmp_path / "ran"
    (tmp_path / "modeling_evil.py").write_text(f"open({str(witness)!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    here = Installed(apart_from=tmp_path)
    assert not here.has_package("modeling_evil")
    here.absent([("modeling_evil", "x"), ("json", "not_there")])
    assert not witness.exists()


@pytest.mark.parametrize("module", ["antigravity", "this", "test.__main__", "idlelib.idle", "rich.__main__"])
def test_programs_are_not_started_to_see_what_they_hold(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*command: object, **how: object) -> None:
        pytest.fail(f"started {command}")

    monkeypatch.setattr("subprocess.run", refuse)
    assert Installed().absent([(module, "nothing")]) == set()
