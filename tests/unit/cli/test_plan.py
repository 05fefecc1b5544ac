"""The verb plan: what if, explanations, trade-offs, the smallest cluster, and what it refuses."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from dayzero.cli import main
from dayzero.data.causes import FACTORS

TARGET = """
[cluster]
device = "h200"
devices_per_node = 8
nodes = 2
[cluster.network]
bandwidth = 50e9
latency = 10e-6
[workload]
input_tokens = 2048
output_tokens = 256
concurrency = 16
"""


@pytest.fixture
def plan(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """plan(card, *arguments) -> (exit code, standard output, error lines) in a folder with a target."""
    (tmp_path / "two.toml").write_text(TARGET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)  # keep pytest's

    def run(card: str, *arguments: str) -> tuple[int, str, list[str]]:
        source = str(root / "examples" / "cards" / f"{card}.toml")
        monkeypatch.setattr(sys, "argv", ["dayzero", "plan", source, *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, [line for line in err.splitlines() if not line.startswith("[")]

    return run


ON_TWO = ("-t", "two.toml")


def files(folder: Path) -> dict[str, bytes]:
    """Content of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_the_answers_are_in_the_json(plan: Any) -> None:
    code, out, err = plan("llama-3.1-8b", *ON_TWO, "--json")
    found = json.loads(out)
    assert code == 0 and not err
    assert {"plans", "rejected", "evaluated", "seconds", "summary", "front", "limits", "families", "sensitivity",
            "smallest"} <= set(found)
    first, second = found["plans"][:2]
    assert first["comparison"] == "" and second["comparison"] and first["within_limits"]
    assert found["smallest"] == [] and found["limits"] == []
    assert len({point["concurrency"] for point in found["front"]}) > 3
    assert len(found["sensitivity"]) == 6 and found["sensitivity"][0]["factor"] == 0.8
    assert sum(one["layouts"] for one in found["families"] if one["rule"] != "memory-total") == len(found["rejected"])
    text = plan("llama-3.1-8b", *ON_TWO)[1]
    assert text.startswith(found["summary"][0][:60]) and "If rates were others" in text


def test_what_if_leaves_the_target_and_its_run_directory_alone(plan: Any, tmp_path: Path) -> None:
    plan("llama-3.1-8b", *ON_TWO)
    kept = files(tmp_path / "runs" / "llama-3.1-8b@two")
    code, out, err = plan("llama-3.1-8b", *ON_TWO, "--nodes", "1", "--concurrency", "64", "--json")
    assert code == 0 and err == ["target: runs/two+nodes=1+concurrency=64.toml"]
    layouts = [one["layout"] for one in json.loads(out)["plans"]]
    assert {layout["tp"] * layout["pp"] * layout["dp"] for layout in layouts} == {8}
    assert (tmp_path / "two.toml").read_text() == TARGET
    assert files(tmp_path / "runs" / "llama-3.1-8b@two") == kept
    assert plan("llama-3.1-8b", "-t", "runs/two+nodes=1+concurrency=64.toml", "--json")[1] == out  # kept as well


def test_without_a_target_file(plan: Any) -> None:
    code, out, _ = plan("llama-3.1-8b", "--device", "mi300x", "--devices", "8", "--json")
    assert code == 0 and json.loads(out)["plans"][0]["layout"]["dp"] >= 1
    code, _, err = plan("llama-3.1-8b")
    assert code == 2 and err == ["error: Missing option '--target' / '-t'.",
                                 "hint: give a target.toml, or at least --device"]


def test_a_layout_is_explained(plan: Any) -> None:
    code, out, _ = plan("llama-3.1-8b", *ON_TWO, "--explain", "tp=16", "--explain", "pp=16", "--explain", "dp=16")
    assert code == 0
    assert "tp=16: Number" in out and "Against" in out and "Time for a token" in out and "in all" in out
    # 8 key/value heads on 16 ranks: each held twice, which is legal; pp=16 of 32 layers too
    found = json.loads(plan("llama-3.1-8b", *ON_TWO, "--explain", "tp=16", "--json", "--top", "1")[1])
    (asked,) = found["explained"]
    assert asked["layout"]["tp"] == 16 and asked["rules"] == [] and asked["plan"]["comparison"].startswith("loses")
    assert len(found["plans"]) == 2


def test_a_rejected_layout_is_explained(plan: Any) -> None:
    code, out, _ = plan("smollm2-135m", *ON_TWO, "--explain", "tp=16")
    assert code == 0 and out.startswith("tp=16: rejected\n")
    assert "  shard-heads: num_attention_heads: 9 heads cannot be shared by 16 ranks" in out
    found = json.loads(plan("smollm2-135m", *ON_TWO, "--explain", "tp=16", "--json")[1])["explained"][0]
    assert "shard-heads" in found["rules"] and found["plan"] is None


def test_limits(plan: Any) -> None:
    code, out, _ = plan("llama-3.1-8b", *ON_TWO, "--tpot", "1us", "--json")
    found = json.loads(out)
    assert code == 1, "it fits, but nothing keeps to the limit"
    assert found["limits"][0]["figure"] == "tpot_s" and found["limits"][0]["met_by"] == 0
    assert not any(one["within_limits"] for one in found["plans"])
    assert any(line.startswith("No layout that fits meets TPOT 1 us: ") for line in found["summary"])
    assert [one["works"] for one in found["smallest"]] == ["fits", "within limits"]
    assert found["smallest"][1]["layout"] is None
    code, out, _ = plan("llama-3.1-8b", *ON_TWO, "--tpot", "1min", "--ttft", "1min", "--json")
    easy = json.loads(out)
    assert code == 0
    assert easy["plans"][0]["within_limits"] and easy["limits"][1]["met_by"] > 1


def test_a_budget_takes_fewer_devices(plan: Any) -> None:
    found = json.loads(plan("llama-3.1-8b", *ON_TWO, "--budget", "4", "--json")[1])
    sizes = {one["layout"]["tp"] * one["layout"]["pp"] * one["layout"]["dp"] for one in found["plans"]}
    assert max(sizes) == 4 and len(sizes) > 1


def test_nothing_fits(plan: Any) -> None:
    """Kimi-K3 has 1.4 TiB of weights; eight H200 have 1.1 TiB, sixteen have room."""
    code, out, _ = plan("kimi-k3", *ON_TWO, "--nodes", "1", "--json")
    found = json.loads(out)
    assert code == 1 and not any(one["fits"] for one in found["plans"])
    assert found["front"] == [] and found["sensitivity"] == []
    (size,) = found["smallest"]
    assert (size["nodes"], size["devices_per_node"]) == (2, 8)
    assert any("to be shared by" in line for line in found["summary"])


def test_nothing_is_legal(plan: Any) -> None:
    """9 heads on two ranks."""
    code, out, _ = plan("smollm2-135m", "--device", "h100", "--devices", "2", "--layout", "tp=2", "--json")
    found = json.loads(out)
    assert code == 1 and found["plans"] == [] and found["rejected"]


def test_a_calibration_changes_the_times(plan: Any, tmp_path: Path) -> None:
    plain = json.loads(plan("llama-3.1-8b", *ON_TWO, "--layout", "dp=16", "--json")[1])["plans"][0]
    factors = "\n".join(f'"{cause}" = 2.0' for cause in FACTORS)
    (tmp_path / "mine.toml").write_text(f'source = "mine.csv"\nrows = 20\n[factors]\n{factors}\n')
    asked = (*ON_TWO, "--layout", "dp=16", "--calibration", "mine.toml", "--json")
    slower = json.loads(plan("llama-3.1-8b", *asked)[1])["plans"][0]
    assert slower["tpot_s"]["value"] == pytest.approx(2 * plain["tpot_s"]["value"], rel=0.1)
    code, _, err = plan("llama-3.1-8b", *ON_TWO, "--calibration", "absent.toml")
    assert code == 2 and "absent.toml" in err[0]


def test_training(plan: Any, root: Path) -> None:
    train = ("-t", str(root / "examples" / "targets" / "train-h100-8x8.toml"))
    code, out, _ = plan("llama-3.1-8b", *train, "--explain", "tp=2,dp=32", "--explain", "tp=64")
    assert code == 0 and "tp=2 dp=32: " in out and "Time of a step" in out
    assert "tp=64: not looked at. In training tp stays within a node." in out
    for option in (("--tpot", "15ms"), ("--pareto",), ("--arrival-rate", "3")):
        code, _, err = plan("llama-3.1-8b", *train, *option)
        assert code == 2 and err[0].startswith(f"error: {option[0]} is about serving, and ")


def test_the_trade_offs(plan: Any) -> None:
    out = plan("llama-3.1-8b", *ON_TWO, "--pareto")[1]
    assert "Throughput against TPOT: nothing beats these" in out and "Throughput against TTFT" in out


@pytest.mark.parametrize(("arguments", "error"), [
    (("--device", "h2000"), "no device is named 'h2000'"),
    (("--tpot", "15"), "--tpot: '15' is no time above 0"),
    (("--layout", "tp=3"), "tp*pp*dp = 3*1*1 = 3 devices, but there are 16"),
    (("--explain", "tp=3"), "tp*pp*dp = 3*1*1 = 3 devices, but there are 16"),
    (("--explain", " "), "a layout is empty"),
    (("--nodes", "0"), "Invalid value for '--nodes'"),
    (("--arrival-rate", "-1"), "workload.arrival_rate = -1.0 is not a sensible number"),
])
def test_what_is_wrong_is_told_in_two_lines(plan: Any, tmp_path: Path, arguments: tuple[str, ...], error: str) -> None:
    code, out, err = plan("llama-3.1-8b", *ON_TWO, *arguments)
    assert code == 2 and not out and len(err) == 2
    assert error in err[0] and err[1].startswith("hint: ")
