"""The gate on a small release: a baseline, the same again, and a weight that somebody changed."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dayzero.errors import NotPossible, StoreError, UsageError
from dayzero.gate import BaselineFolder, Options, _noted, gate, junit, to_contract
from dayzero.gate.checks import outcome_of
from dayzero.gate.identity import changes
from dayzero.schema import to_json
from dayzero.schema.evaluation import Evaluation
from dayzero.schema.gate import Baseline, GateCheck, GateResult, Identity

CARD = Path(__file__).parents[3] / "examples" / "cards" / "smollm2-135m.toml"


def identity(**parts: dict[str, str]) -> Identity:
    return Identity(**{"weights": {"a.safetensors": "1"}, "files": {"config.json": "2"},
                       "libraries": {"torch": "2.13.0"}, "machine": {"processor": "p"}} | parts)


def result(*outcomes: str) -> GateResult:
    checks = tuple(GateCheck(name=f"check {number} \x1b", outcome=each, detail="a < b & c", where="model.layers.0")
                   for number, each in enumerate(outcomes))
    return GateResult(release="r", outcome=outcome_of(checks), checks=checks, baseline="2026-01-01T00:00:00+00:00",
                      changed=changes(identity(), identity(libraries={"torch": "2.14.0"})), identity=identity(),
                      made="2026-01-02T00:00:00+00:00", stored=False, seconds=1.5)


def test_outcomes() -> None:
    assert result("pass", "skipped").outcome == "pass"
    assert result("pass", "inconclusive", "fail").outcome == "fail"
    assert result("pass", "inconclusive").outcome == "inconclusive"
    assert result("skipped").outcome == "inconclusive" and outcome_of(()) == "inconclusive"


def test_what_changed_is_named() -> None:
    after = identity(weights={"b.safetensors": "9"}, libraries={"torch": "2.14.0"})
    assert [(each.what, each.name, each.before, each.after) for each in changes(identity(), after)] == [
        ("weights", "a.safetensors", "1", ""), ("weights", "b.safetensors", "", "9"),
        ("libraries", "torch", "2.13.0", "2.14.0")]
    assert changes(identity(), identity()) == ()


def test_junit_is_what_systems_read() -> None:
    root = ElementTree.fromstring(junit(result("pass", "fail", "skipped", "inconclusive")))
    [suite] = root
    assert [suite.get(each) for each in ("tests", "failures", "skipped", "errors")] == ["4", "1", "2", "0"]
    cases = suite.findall("testcase")
    assert [len(case) for case in cases] == [0, 1, 1, 1] and cases[1][0].tag == "failure"
    assert "first wrong place: model.layers.0" in cases[1][0].text
    assert suite.find("properties")[0].get("value") == "2.13.0 -> 2.14.0"


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(StoreError, match="no baseline folder"):
        BaselineFolder(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(StoreError, match="link"):
        BaselineFolder(link)


def test_damaged_and_foreign_baselines(tmp_path: Path) -> None:
    made = Baseline(made="now", release="r", twin=True, seed=0, identity=identity(), digest="d")
    folder = BaselineFolder(tmp_path / "b")
    assert folder.baseline() is None and folder.scores() is None and folder.history() == []
    folder.note(result("pass"))
    (tmp_path / "b" / "baseline.json").write_bytes(to_json(made)[:-9])
    with pytest.raises(StoreError, match="damaged"):
        folder.baseline()
    (tmp_path / "b" / "baseline.json").write_text(json.dumps({**json.loads(to_json(made)), "format": 99}))
    with pytest.raises(StoreError, match="format 99"):
        folder.baseline()
    with (tmp_path / "b" / "history.jsonl").open("a") as file:
        file.write("{broken\n")
    folder.note(result("fail"))
    assert [each.outcome for each in folder.history()] == ["pass", "fail"]


def test_a_gate_without_a_baseline_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(NotPossible) as caught:
        gate(str(CARD), tmp_path / "b", Options(twin=True))
    assert "--update" in caught.value.hint and not (tmp_path / "b").exists()


def zeroed(release: Path, name: str) -> Path:
    """The file of a tensor, whose bytes are zero now."""
    index = json.loads((release / "model.safetensors.index.json").read_text())
    shard = release / index["weight_map"][name]
    whole = bytearray(shard.read_bytes())
    start = 8 + int.from_bytes(whole[:8], "little")
    first, end = json.loads(whole[8:start])[name]["data_offsets"]
    whole[start + first:start + end] = bytes(end - first)
    shard.write_bytes(whole)
    return shard


@pytest.mark.slow
def test_a_baseline_then_another_weight(tmp_path: Path) -> None:
    from dayzero.stages.read import read
    from dayzero.stages.twin import twin

    release, kept = tmp_path / "release", tmp_path / "baseline"
    twin(read(str(CARD)), release, layers=2, scale=9.0, seed=1)
    options = Options(relations=False)
    first = gate(str(release), kept, options, update=True)
    assert first.outcome == "pass" and first.stored, first.checks
    assert len(BaselineFolder(kept).noise) == 4  # three disturbed runs, and one in the precision of the runs
    with pytest.raises(UsageError, match="without --twin, seed 0, the release's own precision"):
        gate(str(release), kept, Options(relations=False, seed=3))
    with pytest.raises(UsageError, match="lies in the release"):
        gate(str(release), release / "baseline", options, update=True)
    with pytest.raises(UsageError, match="not of other"):
        gate(str(shutil.copytree(release, tmp_path / "other")), kept, options)

    kept_whole = tmp_path / "kept"
    shutil.copytree(kept, kept_whole)
    shutil.copytree(BaselineFolder(kept).noise[0], kept / "reference", dirs_exist_ok=True)
    with pytest.raises(StoreError, match="reference is not what") as caught:
        gate(str(release), kept, options)
    assert "--update" in caught.value.hint
    shutil.rmtree(kept)
    shutil.copytree(kept_whole, kept)
    values = next((kept / "reference").glob("*.safetensors"))
    values.write_bytes((data := values.read_bytes())[:-5] + bytes([data[-5] ^ 0x40]) + data[-4:])
    with pytest.raises(StoreError, match="reference is damaged"):
        gate(str(release), kept, options)
    shutil.rmtree(kept / "reference")
    with pytest.raises(StoreError, match="reference is damaged"):
        gate(str(release), kept, options)
    shutil.rmtree(kept)
    kept_whole.rename(kept)

    shard = zeroed(release, "model.layers.1.mlp.down_proj.weight")
    second = gate(str(release), kept, options)
    assert second.outcome == "fail" and not second.stored
    assert [(each.what, each.name) for each in second.changed] == [("weights", shard.name)]
    before, *others = second.checks
    assert before.outcome == "fail" and before.where.startswith("model.layers.1.mlp")
    assert all(each.outcome == "pass" for each in others)  # the same wrong weight everywhere: only the baseline knows
    assert [each.outcome for each in BaselineFolder(kept).history()] == ["pass", "fail"]
    assert to_contract(second)["passed"] is False


def test_a_new_baseline_leaves_nothing_of_the_one_before(tmp_path: Path) -> None:
    made = Baseline(made="now", release="r", twin=True, seed=0, identity=identity(), digest="d")
    folder, dumps = BaselineFolder(tmp_path / "b"), {name: tmp_path / name for name in ("one", "two", "noise-1")}
    for name, place in dumps.items():
        place.mkdir()
        (place / "part").write_text(name)
    scores = Evaluation(name="r", engine="e")
    folder.store(made, dumps["one"], [dumps["noise-1"]], scores)
    assert folder.scores() == scores and [path.name for path in folder.noise] == ["noise-1"]
    folder.store(made, dumps["two"], [], None)
    assert folder.scores() is None and folder.noise == () and (folder.reference / "part").read_text() == "two"
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["baseline.json", "reference"]


def test_what_cannot_be_stored_is_told_and_the_baseline_before_stays(tmp_path: Path) -> None:
    made = Baseline(made="now", release="r", twin=True, seed=0, identity=identity(), digest="d")
    folder, dump = BaselineFolder(tmp_path / "b"), tmp_path / "one"
    dump.mkdir()
    (dump / "part").write_text("one")
    folder.store(made, dump, [], None)
    with pytest.raises(StoreError, match=r"cannot be stored in .*: .*No such file") as caught:
        folder.store(made, dump, [tmp_path / "gone"], None)
    assert "--update" in caught.value.hint and folder.baseline() == made
    assert (folder.reference / "part").read_text() == "one" and not (tmp_path / "b" / ".new").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be written"):
        BaselineFolder(tmp_path / "file" / "b").check_writable()
    BaselineFolder(tmp_path / "new" / "b").check_writable()
    assert not (tmp_path / "new").exists() and folder.baseline() == made


def test_a_history_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "b" / "history.jsonl").mkdir(parents=True)
    found = _noted(BaselineFolder(tmp_path / "b"), result("pass"))
    assert found.outcome == "pass" and "history.jsonl" in found.not_noted
    assert to_contract(found)["not_noted"] == found.not_noted


def test_an_unknown_precision_is_an_option_of_the_gate(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown dtype 'f9'"):
        gate(str(CARD), tmp_path / "b", Options(dtype="f9"), update=True)
