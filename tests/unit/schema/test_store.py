from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dayzero.errors import StoreError, UsageError
from dayzero.schema import Layout, store
from dayzero.schema.store import RunDirectory, refuse_folder, staged_folder, write_atomic, write_bundle


def saved(folder: RunDirectory, tp: int = 2) -> store.Artifact:
    return folder.save(5, "plan", data=Layout(tp=tp), inputs={"read": "abc"}, seconds=1.0)


def test_artifact_round_trip(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path / "runs" / "m@t", "0.1.0")
    assert folder.load(5, "plan") is None
    made = saved(folder)
    back = folder.load(5, "plan")
    assert back == made and back.load(Layout) == Layout(tp=2) and back.inputs == {"read": "abc"}


def test_digest_ignores_how_long_it_took(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path, "0.1.0")
    first = saved(folder).digest
    again = folder.save(5, "plan", data=Layout(tp=2), inputs={}, seconds=9.0).digest
    assert first == again != saved(folder, tp=4).digest


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"stage": 3}', b"\xff\xfe"])
def test_a_damaged_file_is_made_again(tmp_path: Path, content: bytes) -> None:
    folder = RunDirectory(tmp_path, "0.1.0")
    folder.file(5, "plan").write_bytes(content)
    assert folder.load(5, "plan") is None


def test_another_version_is_made_again(tmp_path: Path) -> None:
    saved(RunDirectory(tmp_path, "0.1.0"))
    assert RunDirectory(tmp_path, "0.2.0").load(5, "plan") is None


def test_wrong_noun(tmp_path: Path) -> None:
    artifact = RunDirectory(tmp_path, "0").save(5, "plan", data={"tp": "two"}, inputs={}, seconds=0.0)
    with pytest.raises(StoreError, match="damaged"):
        artifact.load(Layout)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_atomic(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "."])
def test_a_bundle_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="outside"):
        write_bundle(tmp_path / "bundle", {name: "text"})


def test_only_one_process_at_a_time(tmp_path: Path) -> None:
    code = ("import sys; from pathlib import Path; from dayzero.schema.store import RunDirectory\n"
            "with RunDirectory(Path(sys.argv[1]), '0').lock(): print('got it')")
    folder = RunDirectory(tmp_path, "0")
    with folder.lock():
        other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
        assert "another process is using" in other.stderr
    other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert other.stdout == "got it\n"
    assert list(tmp_path.parent.glob(tmp_path.name)) == []  # nothing was written, nothing is left


def test_a_lock_is_of_the_file_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process removes the directory between another's opening of the lock file and its lock."""
    folder, flock, removed = RunDirectory(tmp_path / "runs" / "m@t", "0"), store.fcntl.flock, []

    def late(handle: int, how: int) -> None:
        if not removed:
            removed.append(handle)
            (folder.path / ".lock").unlink()
            folder.path.rmdir()
        flock(handle, how)

    monkeypatch.setattr(store.fcntl, "flock", late)
    with folder.lock():
        assert removed and (folder.path / ".lock").exists()
    assert not list(tmp_path.iterdir())


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    code = ("import os, signal, sys; from pathlib import Path; from dayzero.schema.store import RunDirectory\n"
            "with RunDirectory(Path(sys.argv[1]), '0').lock(): os.kill(os.getpid(), signal.SIGKILL)")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "m@t")], check=False)
    assert (tmp_path / "m@t" / ".lock").exists()
    with RunDirectory(tmp_path / "m@t", "0").lock():
        saved(RunDirectory(tmp_path / "m@t", "0"))
    assert (tmp_path / "m@t" / "5-plan.json").exists()


def test_a_bundle_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "bundle").symlink_to(tmp_path / "outside")
    with pytest.raises(StoreError, match="symbolic link"):
        write_bundle(tmp_path / "bundle", {"plan.json": "text"})
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("broken", ["link", "file", "long", "gone"])
def test_a_place_that_cannot_be_a_run_directory(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m@t"
    if broken == "link":
        path.mkdir()
        (path / ".lock").symlink_to("no/where")
    elif broken == "file":
        path.write_text("")
    elif broken == "long":
        path = tmp_path / ("m" * 300)
    else:
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        path = Path("runs/m@t")
    with pytest.raises(StoreError, match="cannot use"), RunDirectory(path, "0").lock():
        pass


def test_a_staged_folder_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    with staged_folder(tmp_path / "a" / "out") as folder:
        (folder / "x").write_text("1")
        assert not (tmp_path / "a" / "out").exists()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]
    with pytest.raises(StoreError, match=r"cannot write .*No such file"), staged_folder(tmp_path / "b") as folder:
        (folder / "x").write_text("1")
        (folder / "none" / "y").write_text("1")
    with pytest.raises(KeyError), staged_folder(tmp_path / "b"):
        raise KeyError
    with pytest.raises(StoreError, match="are free"), staged_folder(tmp_path / "b", 1 << 60):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("out", ["r/inner", "r/../r/inner", "link/inner", "r/a/b"])
def test_nothing_is_written_into_what_is_read(out: str, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "r")
    with pytest.raises(UsageError, match=r"lies in .*which is read"):
        refuse_folder(tmp_path / out, (None, "org/name", tmp_path / "r"))
    refuse_folder(tmp_path / "r2", (None, "org/name", tmp_path / "r"))
