"""The registry of backends, plug-ins, and which backend can run what was planned for a described device."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dayzero.backends import Backend, backend_for, backends
from dayzero.backends.cpu import BACKEND as CPU
from dayzero.backends.cuda import BACKEND as CUDA
from dayzero.errors import NotPossible
from dayzero.schema import Device

PLUG_IN = """
from dayzero.backends import TorchBackend

class Toy(TorchBackend):
    name = device_type = "toy"
    device_count = 3
    def available(self): return ""
    def describe(self): return {"made of": "wood"}
    def runs(self, device): return device.arch == "wood"
    def measure(self, ranks, progress=None): raise NotImplementedError

BACKEND = Toy()
"""


def device(arch: str, *, memory: int = 2**30, name: str = "x", vendor: str = "") -> Device:
    return Device(name=name, vendor=vendor, arch=arch, memory_bytes=memory, memory_bandwidth=1e9, flops={"bf16": 1e9})


def install(folder: Path, name: str, code: str = PLUG_IN) -> None:
    """A package with a backend called `name`, as an installer would leave it."""
    (folder / "toy_backend.py").write_text(code)
    info = folder / "toy_backend-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[dayzero.backends]\n{name} = toy_backend:BACKEND\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder from which packages are found."""
    monkeypatch.syspath_prepend(str(tmp_path))
    backends.cache_clear()
    yield tmp_path
    backends.cache_clear()
    sys.modules.pop("toy_backend", None)


def test_ours_follow_the_protocol() -> None:
    assert {"cpu", "cuda"} <= set(backends().names())
    for backend in backends():
        assert isinstance(backend, Backend)
        assert backends().get(backend.name) is backend
        assert (backend.device_count > 0) == (not backend.available()) == bool(backend.describe())


def test_a_plug_in_is_found_and_asked(site: Path) -> None:
    install(site, "toy")
    assert "toy" in backends()
    assert backends().get("toy").describe() == {"made of": "wood"}
    found = backend_for(device("wood"))
    assert found is not None
    assert found.name == "toy"


def test_a_plug_in_cannot_take_the_name_of_ours(site: Path) -> None:
    install(site, "cpu")
    with pytest.warns(RuntimeWarning, match="backend 'cpu' of toy-backend is left out: another backend is named 'cpu'"):
        backends()
    assert backends().get("cpu") is CPU
    assert backends().get("cpu (toy-backend)").available() == "another backend is named 'cpu'"
    assert backend_for(device("wood")) is None


@pytest.mark.parametrize(("code", "reason"), [
    ("raise OSError('no driver')", "OSError: no driver"), ("BACKENDS = 1", "AttributeError: .*no attribute 'BACKEND'"),
    ("import a_module_that_is_missing", "ModuleNotFoundError: No module named"),
    ("BACKEND = object()", "toy_backend:BACKEND lacks available, choices, collectives, current_stream,")])
def test_a_plug_in_that_cannot_be_imported_is_left_out(site: Path, code: str, reason: str) -> None:
    install(site, "toy", code)
    with pytest.warns(RuntimeWarning, match=f"backend 'toy' of toy-backend is left out: .*{reason}"):
        toy = backends().get("toy")
    assert isinstance(toy, Backend)
    assert re.search(reason, toy.available())
    assert (toy.describe(), toy.device_count, toy.runs(device("wood"))) == ({}, 0, False)
    with pytest.raises(NotPossible, match=r"backend toy: toy_backend:BACKEND"):
        toy.measure(1)
    assert backend_for(device("wood")) is None


def test_nothing_here_runs_an_unknown_device() -> None:
    assert backend_for(device("abacus")) is None


def test_importing_backends_loads_no_torch() -> None:
    code = "import sys, dayzero.backends as b; b.backends(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_cuda_says_why_not() -> None:
    pytest.importorskip("torch")
    if not (reason := CUDA.available()):
        pytest.skip("there is a CUDA device")
    assert "CUDA" in reason
    assert CUDA.device_count == 0
    with pytest.raises(NotPossible, match="CUDA"):
        CUDA.measure(1)


# What torch reports for the two: cards of one architecture with different memory.
H200 = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=150_754_820_096)
H100 = SimpleNamespace(name="NVIDIA H100 80GB HBM3", major=9, minor=0, total_memory=85_045_870_592)


def test_cuda_tells_cards_of_one_architecture_apart_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(type(CUDA), "_properties", lambda self: [H200])
    assert CUDA.device_count == 1
    assert CUDA.describe() == {"device 0": "NVIDIA H200, sm_90, 140.40 GiB"}
    assert CUDA.runs(device("sm_90", memory=141 * 10**9))
    assert not CUDA.runs(device("sm_90", memory=80 * 10**9))
    assert not CUDA.runs(device("sm_100", memory=141 * 10**9))
    monkeypatch.setattr(type(CUDA), "_properties", lambda self: [H100])
    assert CUDA.runs(device("sm_90", memory=80 * 10**9))
