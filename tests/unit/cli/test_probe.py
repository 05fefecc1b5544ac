"""dayzero probe without measuring: what it lists, shows and compares, and what it refuses in two lines."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from tests.support.topologies import measured

from dayzero.cli import main
from dayzero.cli.topology_tables import topology_table
from dayzero.data.topologies import file_topology


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """probe(arguments) -> (exit code, standard output, standard error)."""
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dayzero", "probe", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), *capsys.readouterr()

    return run


def test_list_show_and_compare(probe: Any, tmp_path: Path) -> None:
    one, other = measured(), measured(nodes=1, date="2026-02-02")
    for each in (one, other):
        file_topology(each, tmp_path)
    code, out, _ = probe("--list", "--library", ".")
    assert code == 0 and one.name in out and "360.00 GB/s, 40.00 GB/s" in out and "mi300x-xgmi" in out
    listed = json.loads(probe("--list", "--library", ".", "--json")[1])
    assert [each["name"] for each in listed[:2]] == [one.name, other.name]
    code, out, _ = probe("--show", one.name, "--library", ".")
    assert code == 0 and "all_to_all" in out and "52.00 GB/s" in out and "12 us" in out
    code, out, _ = probe("--show", f"{one.name}.topology.json", "--against", "h100-nvswitch-ib400", "--library", ".")
    assert code == 0 and "0.75" in out  # 360 of 480 GB/s of all-reduce


def test_rounds_that_differ_are_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = measured()
    busy = msgspec.structs.replace(quiet, figures=(msgspec.structs.replace(quiet.figures[0], spread=1.7),))
    for one in (quiet, busy):
        Console(width=200).print(topology_table(one))
        assert ("100% of their median (host_to_device.pinned)" in capsys.readouterr().out) is (one is busy)


@pytest.mark.parametrize(("arguments", "message"), [
    (("--list", "--show", "x"), "two things"), (("--list", "--ranks", "2"), "nothing is measured"),
    (("--show", "x", "--out", "y"), "--out is for measuring"), (("--list", "--library", "file"), "no topology library"),
    (("--show", "nope"), "no topology is named"), (("--disk", "/nope"), "no folder that files may be written in"),
    (("--out", "none/x.json"), "none is not a folder"), (("--domains", "8,x"), "no numbers of devices"),
    (("--domains", ""), "no numbers of devices"), (("--library", "file/below"), "cannot write the topology library"),
    (("--show", "file"), "is no topology"), (("--seconds", "0"), "Invalid value"), (("--ranks", "0"), "Invalid value"),
])
def test_refusals(probe: Any, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "file").write_text("{}")
    code, out, err = probe(*arguments)
    lines = err.splitlines()
    assert code == 2 and not out and len(lines) == 2, err
    assert message in lines[0] and lines[1].startswith("hint: ")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_this_torch_and_machine_lack(probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from dayzero.backends import host

    code, _, err = probe("--backend", "nope", "--library", ".")
    assert code == 2 and "this torch has no backend 'nope'" in err and "gloo" in err
    monkeypatch.setattr(host, "cores", lambda: 2)
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 2)
    code, _, err = probe("--ranks", "3", "--library", ".")
    assert code == 2 and "3 ranks on 2" in err and "--ranks 2 or fewer" in err


def test_under_a_launcher_ranks_are_its_own(probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    code, _, err = probe("--ranks", "2", "--library", ".")
    assert code == 2 and "--ranks under torchrun" in err


@pytest.mark.parametrize("wrong", [
    {"RANK": "x"}, {"RANK": "2"}, {"RANK": "-1"}, {"WORLD_SIZE": "0"}, {"LOCAL_RANK": "y"}, {"MASTER_PORT": "99999"},
    {"MASTER_PORT": "z"}])
def test_no_environment_of_a_launcher(probe: Any, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str]) -> None:
    pytest.importorskip("torch")
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1", **wrong}.items():
        monkeypatch.setenv(name, value)
    code, out, err = probe("--library", ".")
    assert code == 2 and not out and "are no place among ranks" in err and len(err.splitlines()) == 2
