"""A real probe: two processes over gloo, four that a launcher started, a killed rank, an interrupt."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dayzero.backends import host
from dayzero.data.topologies import measured, read_topology
from dayzero.schema import COLLECTIVES

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PROBE = [sys.executable, "-m", "dayzero.cli", "probe"]
two_cores = pytest.mark.skipif(host.cores() < 2, reason="a link takes two cores")


def _environment(folder: Path, **more: str) -> dict[str, str]:
    (folder / "tmp").mkdir(exist_ok=True)
    return {**os.environ, "TMPDIR": str(folder / "tmp"), "XDG_DATA_HOME": str(folder / "data"), **more}


def _processes(folder: Path) -> list[int]:
    """Ranks whose arguments name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes()
            if b"probe.process" in line and bytes(folder) in line:
                found.append(int(path.parent.name))
    return found


@two_cores
def test_two_processes(tmp_path: Path) -> None:
    start = time.monotonic()
    done = subprocess.run([*PROBE, "--ranks", "2", "--backend", "gloo", "--seconds", "2", "--json"], cwd=tmp_path,
                          env=_environment(tmp_path), capture_output=True, check=True)
    assert time.monotonic() - start < 120
    (made,) = measured(tmp_path / "data" / "dayzero" / "topologies")
    assert json.loads(done.stdout)["name"] == made.name
    assert (made.nodes, made.devices_per_node, made.backend) == (1, 2, "gloo")
    (level,) = made.levels
    assert (level.name, level.devices, set(level.reached)) == ("node", 2, set(COLLECTIVES))
    for reached in level.reached.values():
        assert reached.latency and 1e-9 <= reached.latency < 1.0 and 1e5 < reached.bandwidth < 1e13
    for timing in level.timings:
        assert (timing.ranks, timing.groups, timing.rounds, len(timing.sizes)) == (2, 1, 5, 8)
        assert timing.seconds[-1] > min(timing.seconds)  # 16 MiB take longer than little
    rates = {figure.name: figure.value for figure in made.figures}
    assert {"memory_bandwidth", "matmul.bf16", "matmul.f32", "disk_read.warm"} <= set(rates)
    assert all(value > 1e6 for value in rates.values()) and {"torch", "system"} <= set(made.environment)
    assert list((tmp_path / "tmp").iterdir()) == [] and not _processes(tmp_path)


def test_ranks_of_a_launcher_and_levels(tmp_path: Path) -> None:
    """As torchrun starts them: every rank the same command, the first one files. Pairs below, all four above."""
    place = tmp_path / "four.json"
    shared = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_port()), "GLOO_SOCKET_IFNAME": "lo",
              "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([*PROBE, "--seconds", "1", "--domains", "2", "--out", str(place)], cwd=tmp_path,
                              env=_environment(tmp_path, RANK=str(rank), LOCAL_RANK=str(rank), **shared),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(4)]
    outputs = [rank.communicate(timeout=200) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, outputs
    assert [bool(out) for out, _ in outputs] == [True, False, False, False]
    made = read_topology(place)
    assert [(level.devices, level.timings[0].ranks, level.timings[0].groups) for level in made.levels] == [
        (2, 2, 2), (4, 2, 2)]
    assert (made.nodes, made.devices_per_node) == (1, 4)
    assert all(set(level.reached) == set(COLLECTIVES) for level in made.levels)


def _port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@two_cores
@pytest.mark.parametrize("ending", ["rank killed", "interrupt"])
def test_nothing_is_left_when_it_ends_early(tmp_path: Path, ending: str) -> None:
    process = subprocess.Popen([*PROBE, "--ranks", "2", "--seconds", "60"], cwd=tmp_path, env=_environment(tmp_path),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.monotonic() + 60
    while len(_processes(tmp_path)) < 2 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(1.0)
    if ending == "interrupt":
        process.send_signal(signal.SIGINT)
    else:
        os.kill(_processes(tmp_path)[-1], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    told = [line for line in err.decode().splitlines() if line.startswith(("error: ", "hint: "))]
    assert process.returncode == (130 if ending == "interrupt" else 1) and len(told) == 2 and not out, err
    if ending == "rank killed":
        assert "of 2 ended with signal 9" in told[0]
    end = time.monotonic() + 5
    while _processes(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _processes(tmp_path) and list((tmp_path / "tmp").iterdir()) == []
    assert not list((tmp_path / "data").rglob("*.json"))
