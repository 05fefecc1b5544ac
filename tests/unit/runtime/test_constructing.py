"""What is built without values leaves the library as it was."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch
from dayzero.runtime.building.constructing import constructing
with constructing():
    import transformers.initialization as library
value = torch.ones(2)
library.zeros_(value)
assert not value.any(), "models that are loaded after it keep what was in memory"
"""


def test_library_loaded_meanwhile_still_fills_weights() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-400:]
