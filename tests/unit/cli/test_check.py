"""`dayzero check`: the stage, and commands of their own beside it; recording a real release from end to end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.support.tiny import dense
from typer.testing import CliRunner

from dayzero.cli import app
from dayzero.errors import DayzeroError, NotPossible, StoreError
from dayzero.runtime.golden import noise_folders, open_dump

RUNNER = CliRunner()
TINY_PROMPT = "ab"


def refused(*arguments: str) -> str:
    made = RUNNER.invoke(app, ["check", *arguments])
    assert isinstance(made.exception, DayzeroError | NotPossible), made.output
    return str(made.exception)


def test_what_is_no_command_is_the_stage() -> None:
    assert "not a release folder: nowhere" in refused("nowhere", "--target", "x.toml")
    assert "not a release folder: nowhere" in refused("--target", "x.toml", "nowhere", "--json")
    told = RUNNER.invoke(app, ["check", "--help"]).output
    assert "record" in told and "stage" in told


@pytest.mark.parametrize(("options", "said"), [
    (("--tokens", "none.json"), "cannot read tokens"), (("--sample", "2,1"), "--sample"),
    (("--layers", "3-1"), "--layers"), (("--layers", "99"), "there is no layer 99"),
    (("--tokens", "t.json", "--prompt", "x"), "--tokens says all"), (("--dtype", "f31"), "no such precision"),
    (("--layout", "cp=2"), "context parallelism"), (("--library", "--layout", "tp=2"), "one process"),
    (("--gradients", "parameters", "--decode", "1"), "whole sequences"), (("--backend", "nobody"), "nobody")])
def test_wrong_requests_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...],
                                      said: str) -> None:
    monkeypatch.chdir(tmp_path)
    folder = dense(tmp_path / "release")
    (tmp_path / "t.json").write_text("[[1, 2]]")
    more = () if "--tokens" in options else ("--tokens", "t.json")
    assert said in refused("record", str(folder), "out", *options, *more)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("text", "said"), [
    ("[[1, 2], []]", "sequence 2 has no tokens"), ("[[1, 300]]", "token 300"), ("[[-1]]", "token -1"),
    ("[]", "no sequences"), ("{}", "cannot read tokens"), ("[[1.5]]", "cannot read tokens"),
    ("[" * 5000, "cannot read")])
def test_wrong_tokens(tmp_path: Path, text: str, said: str) -> None:
    folder = dense(tmp_path / "release")
    (tmp_path / "t.json").write_text(text)
    assert said in refused("record", str(folder), str(tmp_path / "out"), "--tokens", str(tmp_path / "t.json"))


def test_tokens_are_in_a_file(tmp_path: Path) -> None:
    folder, pipe = dense(tmp_path / "release"), tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "not a regular file" in refused("record", str(folder), str(tmp_path / "out"), "--tokens", str(pipe))
    made = RUNNER.invoke(app, ["check", "record", str(folder), str(tmp_path / "out"), "--tokens", "[[1, 2]]"])
    assert isinstance(made.exception, DayzeroError) and "takes a file" in made.exception.hint


def test_an_old_dump_is_not_overwritten(tmp_path: Path) -> None:
    folder = dense(tmp_path / "release")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").write_text("kept")
    assert "not an empty folder" in refused("record", str(folder), str(tmp_path / "out"), "--prompt", "a")


@pytest.mark.slow
def test_modules_that_are_not_there_leave_nothing(tmp_path: Path) -> None:
    folder = dense(tmp_path / "release")
    assert "like 'nosuch'" in refused("record", str(folder), str(tmp_path / "out"), "--prompt", TINY_PROMPT,
                                      "--modules", "nosuch")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_after_a_full_disk_it_is_said_what_to_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreError("the disk is full", "")

    monkeypatch.setattr("dayzero.stages.check.recording.launch", full)
    made = RUNNER.invoke(app, ["check", "record", str(dense(tmp_path / "release")), str(tmp_path / "out"), "--prompt",
                               TINY_PROMPT])
    assert isinstance(made.exception, StoreError) and f"remove {tmp_path / 'out'}" in made.exception.hint


@pytest.mark.slow
def test_a_release_is_recorded_with_its_noise(tmp_path: Path) -> None:
    folder, out = dense(tmp_path / "release"), tmp_path / "out"
    made = RUNNER.invoke(app, ["check", "record", str(folder), str(out), "--prompt", TINY_PROMPT, "--dtype", "f32",
                               "--noise", "1", "--decode", "1", "--json"])
    assert made.exit_code == 0, made.output
    told = json.loads(made.stdout)
    assert (told["ranks"], told["sequences"], len(told["noise"])) == (1, 1, 2)
    with open_dump(out) as dump:
        assert {item.entry.dtype for item in dump.items} == {"F32", "I64"}
        assert [each.phase for each in dump.passes[0].values()] == ["step", "prefill", "decode"], "weights first"
        assert dump.ranks[0].origin.digests.keys() >= {"config.json"}
        plain = next(dump.read(item) for item in dump.items if item.entry.what == "logits")
        kinds = {}
        for each in noise_folders(out):
            with open_dump(each) as noisy:
                other = next(noisy.read(item) for item in noisy.items if item.entry.what == "logits")
                kinds[each.name] = noisy.ranks[0].origin.dtype
                assert 0 < abs(plain - other).max() < 0.2 * abs(plain).max()
        assert kinds == {"noise-1": "F32", "noise-bf16": "BF16"}
    assert not (out / "launch").exists()
