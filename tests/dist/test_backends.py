"""Backends in processes of their own: the suite for what ships, a package of somebody else, a run without operators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.python import run_python

from dayzero.backends.simulated import build

pytest.importorskip("torch")
SIMULATED = pytest.mark.skipif(bool(build.lacking()), reason=build.lacking() or "it can be built")
PACKAGE = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "toy-accelerator"
version = "1.0"
[project.entry-points."dayzero.backends"]
toy = "toy_accelerator:BACKEND"
"""
MODULE = '''
"""A backend on the host that says how fast it is by itself."""

import torch
from dayzero.backends import TorchBackend
from dayzero.backends.collectives import Collectives
from dayzero.backends.cpu import CpuBackend


class Toy(CpuBackend):
    name = "toy"

    def describe(self):
        return {"made of": "wood"}


class LostReduction(Collectives):
    def all_reduce(self, tensor, op="sum", group=None):
        pass


class Broken(Toy):
    def collectives(self):
        return LostReduction(self.library, self.staged, self.device())


BACKEND = Toy()
'''


def check(name: str, *options: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of `dayzero backend check NAME`."""
    done = subprocess.run(
        [sys.executable, "-m", "dayzero.cli", "backend", "check", name, "--json", *options], capture_output=True,
        text=True, check=False, timeout=280, env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
                                                  **environment})
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, json.loads(done.stdout)


def failed(told: dict[str, Any]) -> dict[str, str]:
    return {each["check"]: each["detail"] for each in told["checks"] if each["status"] == "fail"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpu", pytest.param("simulated", marks=SIMULATED)])
def test_what_ships_passes(name: str) -> None:
    code, told = check(name)
    assert (code, failed(told)) == (0, {})
    checks = {each["check"] for each in told["checks"] if each["status"] == "pass"}
    assert {"collectives", "models/dense", "models/experts", "models/linear_attention", "operators/norm"} <= checks


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder into which the package is really installed, for PYTHONPATH."""
    pytest.importorskip("hatchling")
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "pyproject.toml").write_text(PACKAGE)
    (source / "toy_accelerator.py").write_text(MODULE)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
                    "--no-build-isolation", "--target", str(target), str(source)], check=True, capture_output=True)
    return target


@pytest.mark.slow
def test_a_package_of_somebody_else(installed: Path) -> None:
    assert (installed / "toy_accelerator-1.0.dist-info" / "entry_points.txt").is_file()
    few = ("--only", "device,collectives,layouts,optimizations")
    code, told = check("toy", *few, PYTHONPATH=str(installed))
    assert (code, failed(told), told["device"]) == (0, {}, "made of: wood")
    module = installed / "toy_accelerator.py"
    module.write_text(module.read_text().replace("BACKEND = Toy()", "BACKEND = Broken()"))
    code, told = check("toy", *few, PYTHONPATH=str(installed))
    assert (code, failed(told)) == (1, {"collectives": "wrong: all_reduce"})


@pytest.mark.slow
@SIMULATED
def test_a_denied_operator_is_named_in_the_coverage_and_falls_back_in_the_run(tmp_path: Path) -> None:
    """The router of a mixture of experts takes its experts by topk."""
    denied = {"DAYZERO_SIMULATED_DENY": "aten.topk"}
    told = run_python(f"""
import json, warnings
import torch
from dayzero.backends import backends
from dayzero.runtime.conformance.models import ids, small_model

model, given = small_model("experts"), ids()
small_model("experts", torch.bfloat16).save_pretrained({str(tmp_path)!r})
options = dict(max_new_tokens=6, min_new_tokens=6, do_sample=False)
backend = backends().get("simulated")
with warnings.catch_warnings(record=True) as caught, torch.no_grad():
    warnings.simplefilter("always")
    expected = model.generate(given, **options)
    backend.device()
    backend.forget()
    got = model.to(backend.device()).generate(given.to(backend.device()), **options).cpu()
print(json.dumps({{"equal": torch.equal(got, expected), "calls": backend.calls()[1], "warned": [
    str(each.message).split()[1] for each in caught if "runs on the host" in str(each.message)]}}))
""", **denied)
    assert told == {"equal": True, "calls": {"aten::topk": 12}, "warned": ["aten::topk"]}  # two layers, six steps
    arguments = ["trace", str(tmp_path), "--backend", "simulated", "--json"]
    done = subprocess.run([sys.executable, "-m", "dayzero.cli", *arguments], capture_output=True, text=True, check=True,
                          timeout=280, env={**os.environ, **denied})
    coverage = json.loads(done.stdout)["coverage"]
    assert {(row["op"], row["how"], row["tried"]) for row in coverage if row["status"] == "fallback"} == {
        ("aten.topk", "denied by its settings", "works")}
    assert sum(row["status"] == "native" for row in coverage) >= 10
