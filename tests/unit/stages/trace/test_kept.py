"""Kept graphs: found again only where nothing that they depend on changed."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from tests.support.graphs import layered_graph

from dayzero.stages.trace import kept

OPTIONS = {"batch": 1, "tokens": 64}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "release" / name for name in ("config.json", "modeling_own.py")]
    made[0].parent.mkdir()
    for path in made:
        path.write_text("{}")
    return made


def test_the_same_again(tmp_path: Path, files: list[Path]) -> None:
    path = kept.place(tmp_path / "cache", files, OPTIONS)
    assert kept.load(path) is None
    kept.keep(path, layered_graph(operations=True))
    again = kept.place(tmp_path / "cache", reversed(files), dict(reversed(OPTIONS.items())))
    assert kept.load(again) == layered_graph(operations=True)


def test_anything_that_changes_gives_another_place(tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
                                                   ) -> None:
    places = [kept.place(tmp_path, files, OPTIONS), kept.place(tmp_path, files, {**OPTIONS, "tokens": 65}),
              kept.place(tmp_path, files, {**OPTIONS, "trust": True}), kept.place(tmp_path, files[:1], OPTIONS)]
    files[1].write_text("{} ")
    places.append(kept.place(tmp_path, files, OPTIONS))
    os.utime(files[1], ns=(1, 1))
    places.append(kept.place(tmp_path, files, OPTIONS))
    monkeypatch.setattr(kept, "version", lambda name: "99.0")
    places.append(kept.place(tmp_path, files, OPTIONS))
    monkeypatch.setattr(kept, "_sources", lambda: files)
    places.append(kept.place(tmp_path, files, OPTIONS))
    files[0].unlink()
    places.append(kept.place(tmp_path, files, OPTIONS))
    assert len(set(places)) == len(places)


def test_damage_and_a_full_disk_cost_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "traces" / "a.json"
    kept.keep(path, layered_graph())
    path.write_bytes(path.read_bytes()[:-20])
    assert kept.load(path) is None
    monkeypatch.setattr(kept, "write_atomic", lambda *_: (_ for _ in ()).throw(OSError("full")))
    kept.keep(path, layered_graph())


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST", 2)
    for age, name in enumerate(("old", "middle", "new")):
        kept.keep(tmp_path / f"{name}.json", msgspec.structs.replace(layered_graph(), seconds=float(age)))
        os.utime(tmp_path / f"{name}.json", ns=(age * 10**9, age * 10**9))
    kept.keep(tmp_path / "newest.json", layered_graph())
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["new.json", "newest.json"]
