"""The same logits and tokens in every layout, for every kind of architecture: real ranks against one process in f32.

Twins of the shipped cards with the library's code, and a release with code of its own. Code that was released with a
model is tested where `DAYZERO_RELEASE_CODE` names a folder of a release that brings it; headers without values are
enough.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.support import guest, twins

from dayzero.stages.read import read
from dayzero.stages.twin import twin

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

DENSE, OWN, RELEASED = "llama-3.1-8b", "own code", "released code"
CASES = (
    DENSE,  # grouped key/value heads
    "qwen3-235b-a22b",  # the same with experts
    "deepseek-v3",  # latent attention, experts beside shared ones
    "gpt-oss-20b",  # sliding windows, sinks, experts with biases and interleaved widths
    "qwen3-next-80b-a3b",  # linear and full attention
    OWN,  # a list of experts that is looped over, residual blocks, a cache class of its own
    RELEASED,
)
LAYOUTS = (
    "tp=2", "tp=4", "pp=2", "pp=3", "dp=2", "dp=2,fsdp",
    "tp=2,ep=2", "dp=2,ep=2", "tp=4,ep=2", "tp=2,dp=2,ep=2", "tp=2,dp=2,ep=4",
    "tp=2,pp=2", "dp=2,ep=2,pp=2", "tp=2,ep=2,pp=2",
)  # fmt: skip
LARGEST = {  # of the parameters, what a rank holds at most: what is not cut are routers, norms, latent projections
    "tp=2": 0.56, "tp=4": 0.33, "pp=2": 0.75, "pp=3": 0.6, "dp=2": 1.0, "dp=2,fsdp": 0.51, "tp=2,ep=2": 0.56,
    "dp=2,ep=2": 0.91, "tp=4,ep=2": 0.33, "tp=2,dp=2,ep=2": 0.56, "tp=2,dp=2,ep=4": 0.5, "tp=2,pp=2": 0.4,
    "dp=2,ep=2,pp=2": 0.55, "tp=2,ep=2,pp=2": 0.4,
}  # fmt: skip


@cache
def _root(case: str, folder: Path) -> Path:
    if case == OWN:
        return guest.write(folder / "own")
    if case == RELEASED:
        release = read(Path(os.environ["DAYZERO_RELEASE_CODE"]), metadata_only=True)
        return Path(twin(release, folder / "released").folder)
    return Path(twins.of_card(case, folder / case).folder)


@cache
def _results(case: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Of all layouts, run one after the other."""
    out = folder / f"{case}.jsonl"
    own = ["--own"] if case in (OWN, RELEASED) else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1",
                   "PYTORCH_JIT": "0", "PYTHONPATH": str(Path(__file__).parents[2])}  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "tests.dist.equality_ranks", str(_root(case, folder)), str(out), *own,
                           *LAYOUTS], env=environment, capture_output=True, text=True, timeout=1700, check=False)
    assert out.exists(), done.stderr[-2000:]
    return {each["layout"]: each for each in map(json.loads, out.read_text().splitlines())}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
def test_same_logits_and_tokens(case: str, layout: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    if case == RELEASED and not os.environ.get("DAYZERO_RELEASE_CODE"):
        pytest.skip("DAYZERO_RELEASE_CODE names no release that brings code of its own")
    made = _results(case, tmp_path_factory.getbasetemp())[layout]
    if case == DENSE and "ep=" in layout:
        assert "no routed experts" in made["error"]
        return
    assert "error" not in made, made
    for rank, error, tokens, share, whole in made["cells"]:
        assert error < 1e-5, (rank, error)
        assert tokens, rank
        assert share < LARGEST[layout] or layout == "dp=2", (rank, share)
        assert not whole, (rank, whole)
