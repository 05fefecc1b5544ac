"""Environments with a declared version of the library, from wheels that the tests make: no index is asked."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dayzero.errors import NotPossible
from dayzero.runtime import environment as tested
from dayzero.runtime.environment import declared, environment, interpreter, note


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, which is all that the installer looks at: version 4.0.0, and 4.1.0 that needs what is not
    there."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "4.0.0")
    wheel(folder, "4.1.0", "Requires-Dist: nobody-has-this>=1\n")
    (folder / "transformers-4.2.0-py3-none-any.whl").write_bytes(b"no archive")
    monkeypatch.setattr(tested.shutil, "which", lambda _name: None)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def wheel(folder: Path, version: str, requires: str = "") -> None:
    info = f"transformers-{version}.dist-info"
    with zipfile.ZipFile(folder / f"transformers-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr("transformers/__init__.py", f"__version__ = {version!r}\n")
        archive.writestr(f"{info}/METADATA",
                         f"Metadata-Version: 2.1\nName: transformers\nVersion: {version}\n{requires}")
        archive.writestr(f"{info}/WHEEL",
                         "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def says(python: Path, code: str) -> str:
    return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(("config", "found"), [
    ({"transformers_version": "4.56.2"}, "4.56.2"), ({"text_config": {"transformers_version": "4.1"}}, "4.1"),
    ({"text_config": {"transformers_version": "4.1"}, "transformers_version": "4.2"}, "4.2"),
    ({"transformers_version": "4.57.0.dev0"}, "4.57.0"), ({"transformers_version": "5.0.0+local"}, "5.0.0"),
    ({"transformers_version": "5.0.0rc1"}, "5.0.0rc1"), ({"transformers_version": None}, None), ({}, None)])
def test_what_a_config_declares(config: dict[str, object], found: str | None) -> None:
    assert declared(config) == found


@pytest.mark.parametrize("stated", ["latest", "4.56.2 --index-url http://evil", "4.0 @ file:///x", "-r /etc/hosts", ""])
def test_what_is_no_version_goes_to_no_installer(stated: str, tmp_path: Path) -> None:
    with pytest.raises(NotPossible, match="no version"):
        interpreter({"transformers_version": stated}, tmp_path)
    assert not list(tmp_path.iterdir())
    assert "declares" in note({"transformers_version": stated})


def test_what_is_said_of_the_present_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tested, "present", lambda: "5.1.0")
    assert note({"transformers_version": "4.56.2"}) == "the release declares transformers 4.56.2"
    assert note({"transformers_version": "5.1.0"}) == note({"transformers_version": "5.1.0.dev0"}) == note({}) == ""
    assert interpreter({"transformers_version": "5.1.0"}, tmp_path) is None
    with pytest.raises(NotPossible, match="declares no transformers version"):
        interpreter({}, tmp_path)


@pytest.mark.slow
def test_one_is_built_and_used_again(wheels: Path, tmp_path: Path) -> None:
    left = tmp_path / "environments/.new-left"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
    (tmp_path / "environments/.new-other").mkdir()  # another process is at it
    python = interpreter({"transformers_version": "4.0.0"}, tmp_path)
    assert python is not None and python.is_relative_to(tmp_path)
    look = "import transformers, msgspec, sys; print(transformers.__version__, msgspec.__file__, sys.prefix)"
    version, behind, prefix = says(python, look).split()
    assert version == "4.0.0" and prefix == str(python.parents[1])
    import msgspec

    assert Path(behind) == Path(msgspec.__file__).resolve()  # what the version does not bring is the running one's
    assert {path.name for path in (tmp_path / "environments").iterdir()} == {python.parents[1].name, ".new-other"}

    wheels.rename(tmp_path / "gone")
    assert environment("4.0.0", tmp_path) == python  # nothing is installed again
    python.unlink()
    python.symlink_to("/gone/python")
    with pytest.raises(NotPossible, match="cannot be installed"):
        environment("4.0.0", tmp_path)  # its interpreter is gone: it is built again, for which the wheel is missing
    (tmp_path / "gone").rename(wheels)
    assert says(environment("4.0.0", tmp_path), "import transformers; print(transformers.__version__)") == "4.0.0"


@pytest.mark.slow
@pytest.mark.parametrize(("version", "reason"), [
    ("4.9.9", "No matching distribution found for transformers==4.9.9"),
    ("4.1.0", "nobody-has-this"), ("4.2.0", "transformers 4.2.0 cannot be installed")])
def test_what_cannot_be_installed_leaves_nothing(wheels: Path, tmp_path: Path, version: str, reason: str) -> None:
    with pytest.raises(NotPossible, match=reason) as caught:
        environment(version, tmp_path)
    assert "--env present" in caught.value.hint and "\n" not in caught.value.reason
    assert not list((tmp_path / "environments").iterdir())


@pytest.mark.slow
def test_without_a_way_to_an_index(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(NotPossible, match="the package index cannot be reached"):
        environment("4.0.0", tmp_path)
    assert not list((tmp_path / "environments").iterdir())


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "environments").write_text("")
    with pytest.raises(NotPossible, match="no environment can be built in"):
        environment("4.0.0", tmp_path)


def test_uv_is_used_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tested.shutil, "which", lambda name: f"/bin/{name}")
    create, install = tested._commands(tmp_path)
    assert create[0] == install[0] == "/bin/uv" and sys.executable in create and str(tmp_path) in create
    assert install[-2:] == ["--only-binary", ":all:"] and str(tmp_path / "bin/python") in install
