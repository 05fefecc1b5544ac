"""The verb preflight: what it prints where, how it ends, and what it refuses."""

from __future__ import annotations

import datetime
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support import tiny_release as tiny

from dayzero.cli import main

TWO = '[cluster]\ndevice = "h200"\ndevices_per_node = 2\n[layout]\ntp = 2\n'
"""9 heads on two ranks."""


@pytest.fixture
def dayzero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """dayzero(*arguments) -> (exit code, standard output, error lines) in a folder with a release and a target."""
    tiny.write(tmp_path / "release", tiny.dense_tensors())
    (tmp_path / "two.toml").write_text(TWO)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)  # keep pytest's

    def run(*arguments: str) -> tuple[int, str, list[str]]:
        monkeypatch.setattr(sys, "argv", ["dayzero", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, [line for line in err.splitlines() if not line.startswith("[")]

    return run


ON_TWO = ("preflight", "release", "-t", "two.toml")


def test_text_json_and_sarif(dayzero: Any, tmp_path: Path) -> None:
    code, out, err = dayzero(*ON_TWO)
    assert code == 1 and out.startswith("FAIL  release on two: 2 errors\n") and not err
    code, out, _ = dayzero(*ON_TWO, "--json", "--sarif", "found.sarif")
    answer = json.loads(out)
    assert code == 1 and answer["verdict"] == "fail" and answer["waived"] == []
    assert {finding["rule"] for finding in answer["findings"]} == {"shard-heads", "shard-kv-heads"}
    log = json.loads((tmp_path / "found.sarif").read_text())
    code, out, _ = dayzero(*ON_TWO, "--sarif", "-")
    assert code == 1 and json.loads(out) == log
    (place,) = {json.dumps(result["locations"][0]["physicalLocation"]) for result in log["runs"][0]["results"]}
    assert json.loads(place) == {"artifactLocation": {"uri": "two.toml"}, "region": {"startLine": 4}}


def test_chosen_rules(dayzero: Any) -> None:
    assert dayzero(*ON_TWO, "--select", "shard-heads")[1].startswith("FAIL  release on two: 1 error\n")
    assert dayzero(*ON_TWO, "--select", "quant-,rope-base")[0] == 0
    assert dayzero(*ON_TWO, "--ignore", "shard-heads", "--ignore", "shard-kv-")[0] == 0
    assert dayzero(*ON_TWO, "--select", "shard-", "--ignore", "shard-heads,shard-kv-heads")[0] == 0
    assert dayzero(*ON_TWO)[0] == 1, "a look at some rules stood for a look at all"
    code, out, err = dayzero(*ON_TWO, "--select", "shard-hed")
    assert (code, out, len(err)) == (2, "", 2) and 'did you mean "shard-heads"?' in err[1]


def test_waivers(dayzero: Any, tmp_path: Path) -> None:
    day = datetime.date.today()
    waiver = '[[waivers]]\nrule = "{}"\nreason = "padded"\nexpires = {}\n'
    both = waiver.format("shard-heads", day) + waiver.format("shard-kv-heads", day)
    (tmp_path / "two.toml").write_text(TWO + both)
    code, out, _ = dayzero(*ON_TWO)
    assert code == 0 and out.startswith("PASS  release on two: 2 waived\n") and f"accepted until {day}: padded" in out
    answer = json.loads(dayzero(*ON_TWO, "--json")[1])
    assert answer["findings"] == [] and [each["reason"] for each in answer["waived"]] == ["padded", "padded"]
    (tmp_path / "two.toml").write_text(TWO + both.replace(str(day), str(day - datetime.timedelta(days=1))))
    code, out, _ = dayzero(*ON_TWO)
    assert code == 1 and "2 errors, 2 warnings" in out and "waiver-expired" in out
    (tmp_path / "two.toml").write_text(TWO + waiver.format("shard-hed", day))
    code, out, err = dayzero(*ON_TWO)
    assert (code, out) == (2, "") and err[0].startswith("error: two.toml: ") and "shard-heads" in err[1]


def test_a_rule_is_explained_without_a_release(dayzero: Any) -> None:
    code, page, _ = dayzero("preflight", "--explain", "shard-heads")
    assert code == 0 and page.startswith("shard-heads  error\n") and "How to fix" in page
    assert dayzero("rules", "shard-heads") == (0, page, [])
    assert json.loads(dayzero("rules", "shard-heads", "--json")[1])["page"].count("## ") == 4
    code, out, err = dayzero("preflight", "--explain", "shard-hed")
    assert (code, out, len(err)) == (2, "", 2)
    assert err[1] == 'hint: did you mean "shard-heads"? dayzero rules lists them'
    assert dayzero("preflight", "--explain", "nope")[2][1] == "hint: dayzero rules lists them"


@pytest.mark.parametrize("file", ["two.toml", "release/config.json", "release/new.sarif", "release/sub/../new.sarif",
                                  "link.sarif", "linked/new.sarif", "here.sarif", "missing/new.sarif", "release"])
def test_sarif_is_written_over_nothing_that_is_read(dayzero: Any, tmp_path: Path, file: str) -> None:
    (tmp_path / "release/sub").mkdir()
    (tmp_path / "link.sarif").symlink_to("release/config.json")
    (tmp_path / "linked").symlink_to("release")
    (tmp_path / "here.sarif").hardlink_to(tmp_path / "two.toml")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code, out, err = dayzero(*ON_TWO, "--sarif", file)
    assert (code, out, len(err)) == (2, "", 2) and err[0].startswith("error: --sarif: ")
    assert file.split("/")[0] in err[0] and err[1].startswith("hint: ")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(("arguments", "word"), [
    (("preflight",), "Missing argument 'RELEASE'"), (("preflight", "release"), "Missing option '--target'"),
    ((*ON_TWO, "--json", "--sarif", "-"), "both print"), ((*ON_TWO, "--sarif", ""), "has no file"),
    ((*ON_TWO, "--sarif", "two.toml/x"), "two.toml"), ((*ON_TWO, "--select", ""), "no rule is named ''"),
    (("read", "release", "-t", "two.toml"), "--target says whose"),
])
def test_refused(dayzero: Any, arguments: tuple[str, ...], word: str) -> None:
    code, _, err = dayzero(*arguments)
    assert code == 2 and len(err) == 2 and word in err[0] and err[1].startswith("hint: ")


def test_the_ledger_of_keys(dayzero: Any, tmp_path: Path) -> None:
    config = {**tiny.CONFIG, "rope_theta": 5e5}
    (tmp_path / "release/config.json").write_text(json.dumps(config))
    without = dayzero("read", "release", "--keys")[1]
    assert "rope_theta" in without and "config_reads" not in without
    silent = dayzero("read", "release", "--keys", "-t", "two.toml")[1]
    assert "whether the engine any reads them is not known: no config_reads is stated" in " ".join(silent.split())
    (tmp_path / "two.toml").write_text(TWO + "[engine]\nconfig_reads = {rotary = []}\n")
    assert "config_reads" not in dayzero("read", "release", "--keys", "-t", "two.toml")[1]
    entries = json.loads(dayzero("read", "release", "--keys", "-t", "two.toml", "--json")[1])["keys"]
    rotary = [(entry["key"], entry["engine"]) for entry in entries if entry["role"] == "rotary"]
    assert rotary == [("rope_theta", False)]
