"""What lies below the values: weights as they are stored, and a store behind a URL."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.tiered import generate, place, tiered, whole
from tests.support.twins import of_card

from dayzero.errors import NotPossible, ReleaseError
from dayzero.runtime.building import blueprint
from dayzero.runtime.loading import Checkpoint
from dayzero.runtime.store import Store, url_of
from dayzero.runtime.tiers import Tiers
from dayzero.runtime.tiers.parts import Finder, Unit
from dayzero.runtime.tiers.policies import Frequent
from dayzero.runtime.tiers.slots import Reading
from dayzero.runtime.tiers.stored import Stored
from dayzero.runtime.weights import check_weights
from dayzero.schema import Budget
from dayzero.schema.manifest import Manifest, save_manifest
from dayzero.stages.read import read

pytestmark = pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With quantised experts."""
    folder = tmp_path_factory.mktemp("twins") / "twin"
    of_card("gpt-oss-20b", folder)
    return folder


def _units(model: Any, checkpoint: Checkpoint) -> list[Unit]:
    return [unit for each in Finder(model, checkpoint, {}, None).find().experts for unit in each.units]


@pytest.mark.parametrize("count", [0, 3, 100])
def test_stored_bytes_give_the_values_of_the_files(twin: Path, count: int) -> None:
    """In no more room than there is, and those that are needed more often stay."""
    model = blueprint(twin).model
    with Checkpoint(twin, model) as checkpoint:
        units = _units(model, checkpoint)
        size = sum(checkpoint.bytes(part.name, part.cut) for part in units[0].parts)
        level = Stored(checkpoint, count * size + 10, Frequent(), torch.device("cpu"))
        reading = Reading(checkpoint, levels=[level])
        often = units[:2]
        for time in range(3):
            reading.time = time
            for unit in [*often, *often, *units]:
                targets = [(part, torch.empty(part.shape, dtype=part.dtype)) for part in unit.parts]
                for work in reading.start(unit, targets):
                    work.result()
                for part, target in targets:
                    plain = torch.empty_like(target)
                    checkpoint.fill(part.name, part.cut, plain)
                    assert torch.equal(target, plain)
                assert level.nbytes <= count * size + 10
        for unit in often:
            assert level.fill(unit, unit.parts[0], torch.empty(unit.parts[0].shape), 3) == (count > 0)
        reading.close()


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_a_model_runs_from_a_store(twin: Path, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    url = f"file://{twin}"
    if scheme == "memory":
        url = "memory://bucket/release"
        fsspec.filesystem("memory").put(f"{twin}/", "/bucket/release/", recursive=True)
    counts: list[int] = []
    plain = Store.read
    monkeypatch.setattr(Store, "read", lambda store, path, start, target: (
        counts.append(target.nbytes), plain(store, path, start, target))[1])
    folder = Store(url).describe(tmp_path)
    on_disk = sum(path.stat().st_blocks * 512 for path in folder.glob("*.safetensors"))
    assert on_disk < 100_000 < sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    model, tiers = tiered(folder, share=0.2)
    assert torch.equal(generate(model, 2)[1], generate(whole(twin), 2)[1])
    assert sum(counts) > 0
    tiers.close()


def test_a_described_release_is_fetched_again_only_where_the_store_has_changed(twin: Path, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    away = tmp_path / "away"
    shutil.copytree(twin, away)
    fetched: list[str] = []

    class Counting(Store):
        def _fetch(self, path: Path, entry: Any) -> None:
            fetched.append(path.name)
            super()._fetch(path, entry)

    names = sorted(path.name for path in away.iterdir())
    here = Counting(f"file://{away}").describe(tmp_path)
    assert fetched == names
    (away / "config.json").write_text((away / "config.json").read_text() + " ")
    (away / "tokenizer.json").unlink()
    assert Counting(f"file://{away}").describe(tmp_path) == here
    assert fetched == [*names, "config.json"]
    assert (here / "config.json").read_text().endswith(" ") and not (here / "tokenizer.json").exists()
    release = read(f"file://{away}", cache=tmp_path / "cache")
    assert (release.store, release.has_weights) == (f"file://{away}", False)
    assert release.tensors.count == read(twin).tensors.count
    assert check_weights(release, away=True) == Path(str(release.root))
    with pytest.raises(NotPossible, match="only --stream reads them there"):
        check_weights(release)


@pytest.mark.parametrize("length", [0, 2**62])
def test_no_more_than_a_header_is_fetched_of_what_is_no_weight_file(length: int, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "model.safetensors").write_bytes(length.to_bytes(8, "little") + b"{}" * 100)
    with pytest.raises(ReleaseError, match=r"model.safetensors of .*: it has no header of safetensors"):
        Store(f"file://{tmp_path}/away").describe(tmp_path)
    assert not [path for path in (tmp_path / "stores").rglob("*") if path.is_file()]


def test_a_manifest_that_came_with_a_release_sends_nobody_elsewhere(twin: Path, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    for folder in (tmp_path / "release", tmp_path / "stores" / "release"):
        shutil.copytree(twin, folder)
        save_manifest(folder, Manifest(files={}, store=f"file://{tmp_path}/elsewhere"))
        assert url_of(folder) == read(folder).store == ""


def test_a_store_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(NotPossible, match="cannot be opened"):
        Store("nosuchscheme://bucket/release")
    with pytest.raises(ReleaseError, match="cannot read memory://nowhere"):
        Store("memory://nowhere").describe(tmp_path)


def test_a_range_beyond_the_end_is_an_error(twin: Path) -> None:
    pytest.importorskip("fsspec")
    name = next(twin.glob("*.safetensors"))
    target: Any = memoryview(bytearray(100))
    with pytest.raises(OSError, match="ends within"):
        Store(f"file://{twin}").read(name, name.stat().st_size - 10, target)


def _verified(folder: Path, model: Any) -> Checkpoint:
    """All files compared with their digests."""
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")}
    checkpoint = Checkpoint(folder, model, digests=digests)
    checkpoint.read({}, verify=checkpoint.files_of(checkpoint.names))
    return checkpoint


def test_a_read_that_is_wrong_once_changes_no_bit(twin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, logits = generate(whole(twin), 3)
    model = blueprint(twin).model
    checkpoint = _verified(twin, model)
    tiers = Tiers(model, checkpoint, {}, Budget(host=0, weights=True))
    place(model, checkpoint.read({name: {} for name in checkpoint.names if name not in tiers.owned}))
    tiers.install()
    plain, reads, seen = os.preadv, itertools.count(), set()

    def preadv(file: int, targets: list[memoryview], at: int) -> int:
        count = plain(file, targets, at)
        if (file, at) not in seen and next(reads) % 40 == 13 and targets[0].nbytes > 500:
            targets[0][99] ^= 2
        seen.add((file, at))
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    again, same = generate(model, 3)
    assert again == tokens and torch.equal(same, logits)
    assert tiers.statistics().repaired > 0
    tiers.close()


def test_a_file_that_decays_while_it_is_in_use_is_named(twin: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(twin, tmp_path / "twin"))
    model = blueprint(folder).model
    checkpoint = _verified(folder, model)
    tiers = Tiers(model, checkpoint, {}, Budget(host=0, weights=True))
    place(model, checkpoint.read({name: {} for name in checkpoint.names if name not in tiers.owned}))
    tiers.install()
    generate(model, 1)
    stored = next(each for name, each in checkpoint.files.tensors.items() if name.endswith("down_proj_blocks"))
    path = folder / checkpoint.files.names[stored.file]
    state = path.stat()
    with path.open("r+b") as file:
        file.seek(stored.start)
        file.write(bytes(range(256)) * (stored.length // 256))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(ReleaseError, match=r"is not what was verified: what follows byte \d+, in .*_proj_blocks"):
        generate(model, 3)
    tiers.close()
