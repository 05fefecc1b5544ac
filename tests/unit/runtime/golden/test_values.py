"""Bytes of many files, read by several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dayzero.errors import StoreError
from dayzero.runtime.golden import values
from dayzero.runtime.golden.values import Files, decoded


def test_few_files_stay_open_however_many_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_OPEN", 3)
    paths = [tmp_path / str(number) for number in range(12)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 100)
    files = Files()
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda path: files.read(path, 10, 50), paths * 5))
    assert [set(each.tolist()) for each in read] == [{number} for number in range(12)] * 5
    assert files.nbytes == 60 * 50 and len(files._open) == 3
    files.close()
    assert not files._open and files.read(paths[7], 99, 1).tolist() == [7]


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"12345")
    with pytest.raises(StoreError, match="it ends at byte 5"):
        Files().read(tmp_path / "short", 3, 4)
    with pytest.raises(StoreError, match="No such file"):
        Files().read(tmp_path / "none", 0, 1)


@pytest.mark.parametrize(("dtype", "kind", "given", "expected"), [
    ("BF16", "f4", b"\x80\x3f\x20\xc0", [1, -2.5]), ("F64", "f8", np.array([1, -2.5]).tobytes(), [1, -2.5]),
    ("U16", "i8", b"\xff\xff\x00\x00", [65535, 0]), ("BOOL", "b1", b"\x01\x00", [True, False]),
    ("F8_E4M3", "f4", b"\x38\xb8", [1, -1])])
def test_values_by_their_dtype(dtype: str, kind: str, given: bytes, expected: list[float]) -> None:
    found = decoded(np.frombuffer(given, np.uint8), dtype)
    assert found.dtype == kind and found.tolist() == expected
    with pytest.raises(StoreError, match="cannot be read"):
        decoded(np.frombuffer(given, np.uint8), "F4")
