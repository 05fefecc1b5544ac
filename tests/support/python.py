"""Runs a piece of Python in a process of its own: what it does to torch stays there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any


def run_python(code: str, **environment: str) -> Any:
    """What the code printed last, as JSON. Fails with its errors when it fails."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment})
    assert not done.returncode, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
