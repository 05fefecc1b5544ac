"""A full disk: what libraries raise is told by the exit code."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dayzero.errors import StoreError
from dayzero.runtime import space
from dayzero.schema.store import write_atomic


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_an_exit_code(number: int) -> None:
    with pytest.raises(SystemExit) as caught, space.exit_without_space():
        raise OSError(number, os.strerror(number))
    assert caught.value.code == space.NO_SPACE > 2


def test_other_errors_stay(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), space.exit_without_space():
        (tmp_path / "none").read_bytes()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError), space.exit_without_space():
        write_atomic(tmp_path / "file" / "below", b"")


def test_a_result_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SystemExit) as caught, space.exit_without_space():
        write_atomic(tmp_path / "result.json", b"{}")
    assert caught.value.code == space.NO_SPACE


def test_a_full_disk_is_known_by_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError) as other:
        write_atomic(tmp_path / "file" / "below", b"")
    assert not space.full(other.value)

    def full(descriptor: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError) as caught:
        write_atomic(tmp_path / "part", b"")
    assert space.full(caught.value)


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    """The text is that of safetensors 0.8 on a tmpfs that is full."""
    pytest.importorskip("safetensors")
    from safetensors import SafetensorError

    with pytest.raises(OSError, match="dump") as caught, space.saving(tmp_path / "dump"):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(SafetensorError, match="something else"), space.saving(tmp_path / "dump"):
        raise SafetensorError("something else")
