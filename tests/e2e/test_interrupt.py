"""Ctrl-C in each stage: exit code 130, nothing half-written, no process left, and the same command goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STAGES = ["read", "target", "trace", "run", "check"]
"""The stages that take long enough to be interrupted on purpose."""


def start(model: Path, target: Path, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dayzero.cli", "adapt", str(model), "--target", str(target),
               "--max-new-tokens", "4"]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            start_new_session=True)


def interrupt_at(stage: str, process: subprocess.Popen[str]) -> tuple[int, str]:
    """Send SIGINT, as a terminal does to the whole group, once the stage has begun. -> (exit code, standard error)"""
    seen = []
    for line in process.stderr:
        seen.append(line)
        if line.partition("] ")[2].split()[:1] == [stage]:
            break
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    rest = process.communicate(timeout=60)[1]
    return process.returncode, "".join(seen) + rest


def in_group(group: int) -> list[int]:
    """Processes that still belong to a process group."""
    left = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            left.append(int(stat.parent.name))
    return left


@pytest.mark.slow
def test_every_stage_can_be_interrupted(real_model: Path, root: Path, tmp_path: Path) -> None:
    target = root / "examples/targets/local.toml"
    run = tmp_path / "runs" / "SmolLM2-135M@local"
    for stage in STAGES:
        process = start(real_model, target, tmp_path)
        code, text = interrupt_at(stage, process)
        assert code == 130, (stage, text)
        assert text.splitlines()[-2:][0] == "error: interrupted", (stage, text)
        assert "Traceback" not in text, (stage, text)
        assert not list(run.rglob("*.part")) and not in_group(process.pid)
        for path in run.glob("*.json"):
            assert json.loads(path.read_text())["status"] == "done", path
    process = start(real_model, target, tmp_path)
    _, text = process.communicate(timeout=240)
    assert process.returncode == 0, text
    assert (run / "9-report.html").exists()
