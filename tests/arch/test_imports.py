"""The import order, and which stages start without torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASE = [
    "dayzero", "dayzero.cli", "dayzero.pipeline", "dayzero.resolve", "dayzero.schema", "dayzero.data", "dayzero.ops",
    "dayzero.placement", "dayzero.backends", "dayzero.targets", "dayzero.stages.read", "dayzero.stages.preflight",
    "dayzero.stages.plan", "dayzero.stages.emit", "dayzero.stages.report", "dayzero.stages.trace", "dayzero.stages.run",
    "dayzero.stages.check",
]
HEAVY = ("torch", "transformers", "safetensors", "accelerate", "gguf")


def test_import_order(root: Path) -> None:
    linter = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert linter, "import-linter is part of the dev extra"
    done = subprocess.run([linter, "--no-cache"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", BASE)
def test_base_stages_load_without_torch(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_import_dayzero_is_light() -> None:
    code = "import sys, dayzero; print(len([name for name in sys.modules if name.startswith('dayzero')]))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "1"
