"""Disk reads: real ones of a temporary folder, which stays empty, and folders that cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dayzero.runtime.probe import disk


def test_rates_of_a_real_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_BYTES", 1 << 23)
    found, missing = disk.disk_reads(tmp_path)
    assert {*found, *missing} == {"disk_read.cold", "disk_read.warm", "disk_read.direct"}
    assert all(len(rates) == disk.ROUNDS and min(rates) > 1e6 for rates in found.values())
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_direct_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_BYTES", 1 << 22)
    real = os.open

    def refusing(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refusing)
    found, missing = disk.disk_reads(tmp_path)
    assert missing == {"disk_read.direct": "the file system refuses them: Invalid argument"} and len(found) == 2


def test_a_disk_that_is_full_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured before is worth more than the disk's rate: it is listed as missing."""
    assert disk.disk_reads(tmp_path / "none") == ({}, {"disk_read": (
        f"no 128 MiB can be written and read in {tmp_path / 'none'}: No such file or directory")})

    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    found, missing = disk.disk_reads(tmp_path)
    assert not found and "No space left on device" in missing["disk_read"] and not list(tmp_path.iterdir())
