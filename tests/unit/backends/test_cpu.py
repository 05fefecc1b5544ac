"""The host probe: how samples become a device, what it refuses, and (slow) a real probe of two processes."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from dayzero.backends import backend_for, cpu, host, measure_host
from dayzero.backends import together as gang
from dayzero.backends.cpu import BACKEND, Sample
from dayzero.backends.scratch import scratch
from dayzero.errors import NotPossible, StageError, UsageError

LINKS = {f"{kind}.{what}": [value] * 3 for kind in ("all_reduce", "send", "broadcast")
         for what, value in (("latency", 1e-4), ("bandwidth", 1e9))}  # fmt: skip


def sample(bandwidth: list[float], process_bytes: int = 100) -> Sample:
    rounds = {"memory_bandwidth": bandwidth, "op_overhead": [1e-6, 2e-6, 9e-6], "flops.bf16": [4e11] * 3,
              "flops.f32": [1e11] * 3, **LINKS}  # fmt: skip
    return Sample(rounds=rounds, process_bytes=process_bytes)


def test_figures_are_medians_over_all_rounds_of_all_processes() -> None:
    samples = [sample([1e9, 2e9, 3e9], 100), sample([4e9, 5e9, 60e9], 120)]
    device = cpu._device(samples, threads=1, memory=2**30, ranks=2)
    assert device.memory_bandwidth == 3.5e9
    assert device.op_overhead == 2e-6
    assert device.flops == {"bf16": 4e11, "f32": 1e11}
    assert device.process_bytes == 120
    assert device.measured and device.efficiency == 1.0
    assert [(link.name, link.latency, link.bandwidth) for link in device.links] == [("loopback", 1e-4, 1e9)]
    assert "2 processes at once" in device.sources["memory_bandwidth"]
    assert "median of 6 rounds, spread 1686%" in device.sources["memory_bandwidth"]  # (60 - 1) / 3.5


def test_ranks_beyond_the_cores_take_turns() -> None:
    two = [sample([1e9, 2e9, 3e9]), sample([1e9, 2e9, 3e9])]
    device = cpu._device(two, threads=1, memory=2**30, ranks=24)
    assert device.memory_bandwidth == pytest.approx(2e9 / 12)
    assert device.flops["f32"] == pytest.approx(1e11 / 12)
    assert device.op_overhead == pytest.approx(12 * 2e-6)
    assert (device.links[0].latency, device.links[0].bandwidth) == pytest.approx((12e-4, 1e9 / 12))
    assert "24 ranks share that in turns, a rank's part is 2/24" in device.sources["op_overhead"]


@pytest.mark.parametrize(("ranks", "cores", "started"), [(24, 2, 2), (2, 1, 2), (1, 8, 1), (4, 8, 4), (9, 8, 8)])
def test_as_many_processes_as_cores(ranks: int, cores: int, started: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def probe(processes: int, threads: int, progress: object) -> list[Sample]:
        asked.append(processes)
        return [sample([1e9] * 3)] * processes

    monkeypatch.setattr(cpu, "_probe", probe)
    monkeypatch.setattr(host, "cores", lambda: cores)
    monkeypatch.setattr(cpu, "find_spec", lambda name: name)
    assert bool(BACKEND.measure(ranks).links) == (ranks > 1)
    assert asked == [started]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_one_that_measures(number: int, tmp_path: Path) -> None:
    """And what a killed one leaves in the temporary folder, the next removes."""
    pytest.importorskip("transformers")
    (tmp_path / "t.toml").write_text('[cluster]\ndevice = "local"\ndevices_per_node = 2\n')
    (tmp_path / "tmp").mkdir()
    card = Path(__file__).parents[3] / "examples" / "cards" / "smollm2-135m.toml"
    command = [sys.executable, "-m", "dayzero.cli", "plan", str(card), "-t", str(tmp_path / "t.toml")]
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
                          stderr=subprocess.PIPE) as process:
        end = time.monotonic() + 60
        while len(_probes(tmp_path)) < 2 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(number)
        error = process.communicate()[1].decode()
    end = time.monotonic() + 5  # until torch is imported they take that long
    while _probes(tmp_path) and time.monotonic() < end:
        time.sleep(0.02)
    assert not _probes(tmp_path)
    left = list((tmp_path / "tmp").iterdir())
    if number == signal.SIGTERM:
        assert process.returncode == 143 and not left
        assert error.splitlines()[-2].startswith("error: ended by") and not list(tmp_path.rglob("*.part"))
    else:
        assert len(left) == 1
        with temporary(tmp_path / "tmp"), scratch("dayzero-probe-") as folder:
            assert list((tmp_path / "tmp").iterdir()) == [folder]


def _probes(folder: Path) -> list[int]:
    """Processes that have a folder's name in their arguments and are the probe's."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes()
            if b"cpu_process" in line and bytes(folder) in line:
                found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def temporary(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        yield


def test_scratch_of_the_living_stays(tmp_path: Path) -> None:
    with temporary(tmp_path):
        (tmp_path / "x-mine").mkdir()
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / ".owner").touch()
        (tmp_path / "x-link").symlink_to(tmp_path / "outside")
        with scratch("x-") as one:
            with scratch("x-") as two:
                assert one.is_dir() and two.is_dir() and one != two
            assert not two.exists()
        assert not one.exists()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "x-link", "x-mine"]


def test_every_figure_has_a_source() -> None:
    device = cpu._device([sample([1e9] * 3)], threads=2, memory=2**30, ranks=1)
    assert set(device.sources) == {"memory_bytes", "memory_bandwidth", "flops.bf16", "flops.f32", "op_overhead",
                                   "process_bytes", "efficiency"}
    assert device.links == ()  # one rank sends nothing


def test_a_measured_device_runs_here() -> None:
    device = cpu._device([sample([1e9] * 3)], threads=2, memory=2**30, ranks=1)
    if not BACKEND.available():
        assert backend_for(device) is BACKEND
    assert device.arch == platform.machine()


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    assert BACKEND.available() == "torch not installed"
    assert BACKEND.device_count == 0
    with pytest.raises(NotPossible, match="torch not installed") as caught:
        BACKEND.measure(2)
    assert "dayzero[torch]" in caught.value.hint


def test_no_ranks_are_refused() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(UsageError, match="not a number of ranks: 0"):
        BACKEND.measure(0)


def test_a_process_that_dies_is_told_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for it forever; none of them is left."""
    pytest.importorskip("transformers")
    started: list[subprocess.Popen[bytes]] = []

    def broken(module: str, folder: Path, rank: int, ranks: int, threads: int) -> subprocess.Popen[bytes]:
        code = "raise SystemExit('no room')" if rank else "import time; time.sleep(100)"
        with (folder / f"{rank}.log").open("wb") as log:
            started.append(subprocess.Popen([sys.executable, "-c", code], stderr=log))
        return started[-1]

    monkeypatch.setattr(gang, "start", broken)
    with pytest.raises(StageError, match="process 1 of 2 ended with exit code 1") as caught:
        BACKEND.measure(2)
    assert "no room" in caught.value.log
    assert all(process.poll() is not None for process in started)


@pytest.mark.slow
def test_a_real_probe_gives_plausible_figures() -> None:
    """Bounds that any machine of the last ten years is within, busy or not."""
    pytest.importorskip("transformers")
    start = time.monotonic()
    device = measure_host(2)
    assert time.monotonic() - start < 90
    assert 1e8 < device.memory_bandwidth < 1e12
    assert 1e9 < device.flops["f32"] < device.flops["bf16"] * 20
    assert 5e-7 < device.op_overhead < 1e-2
    assert 100 << 20 < device.process_bytes < 2 << 30
    assert device.memory_bytes <= host.available_memory()
    (link,) = device.links
    assert 1e-6 < link.latency < 1.0
    assert 1e6 < link.bandwidth < 1e12
    assert all("measured" in source for source in device.sources.values())
