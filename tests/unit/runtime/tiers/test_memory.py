"""Budgets hold: the private memory of a process, and the memory of a device with a cap."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.support import tiny
from tests.support.tiered import generate, place, whole
from tests.support.twins import of_card

from dayzero.backends import backends, host
from dayzero.errors import UsageError
from dayzero.runtime.building import blueprint
from dayzero.runtime.loading import Checkpoint
from dayzero.runtime.tiers import Tiers
from dayzero.schema import Budget

CHILD = """
import json, sys
from pathlib import Path
from dayzero.backends import host
from dayzero.runtime.building import blueprint
from dayzero.runtime.loading import Checkpoint
from dayzero.runtime.memory import PeakSampler
from dayzero.runtime.tiers import Tiers
from dayzero.schema import Budget
from tests.support.tiered import generate, place
import torch

torch.set_num_threads(1)
folder = Path(sys.argv[1])
model = blueprint(folder, "bf16").model
memory = host.private_memory() + int(sys.argv[2])
with PeakSampler(lambda: "") as sampler:
    checkpoint = Checkpoint(folder, model)
    tiers = Tiers(model, checkpoint, {}, Budget(host=memory), reserve=64 << 20)
    place(model, checkpoint.read({name: {} for name in checkpoint.names if name not in tiers.owned}))
    tiers.install()
    tokens, _ = generate(model, 4)
print(json.dumps([tokens, sampler.peak, memory, sum(tiers.statistics().kept.values())]))
"""
pytestmark = pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize("more", [130 << 20, 220 << 20])
def test_private_memory_stays_in_the_budget(real_model: Path, root: Path, more: int) -> None:
    """270 MB of weights in 130 MB and in 220 MB beside what the process takes anyway."""
    made = subprocess.run([sys.executable, "-c", CHILD, str(real_model), str(more)], cwd=root, check=True,
                          stdout=subprocess.PIPE, text=True)
    tokens, peak, memory, kept = json.loads(made.stdout.splitlines()[-1])
    assert tokens == generate(whole(real_model, "bf16"), 4)[0]
    assert peak <= memory
    assert kept >= (more - (64 << 20)) * 0.8  # and it is used


def test_too_little_names_the_least(real_model: Path) -> None:
    model = blueprint(real_model, "bf16").model
    with Checkpoint(real_model, model) as checkpoint:
        with pytest.raises(UsageError) as caught:
            Tiers(model, checkpoint, {}, Budget(host=10 << 20))
        least = int(caught.value.hint.split()[2]) + (64 << 20)  # the process may grow until then
        tiers = Tiers(model, checkpoint, {}, Budget(host=least))
        assert tiers.cache_room == max(64 << 20, least // 10 // 2)  # of a process that has grown: a twentieth
        tiers.close()
        with pytest.raises(UsageError, match="there is no oldest"):
            Tiers(model, checkpoint, {}, policy="oldest")


def test_a_cache_gets_half_of_what_is_left_to_everything_else(tmp_path: Path) -> None:
    """A tenth of a large budget; a plan, which counts weights alone, says nothing about it."""
    root = tiny.dense(tmp_path / "model")
    model = blueprint(root).model
    with Checkpoint(root, model) as checkpoint:
        for budget, room in ((Budget(host=10**10), 5 * 10**8), (Budget(host=10**10, weights=True), None),
                             (Budget(keep="stored"), None)):
            tiers = Tiers(model, checkpoint, {}, budget)
            assert tiers.cache_room == room
            tiers.close()


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["values", "stored"])
def test_device_with_a_cap_and_packed_bytes_on_the_host(keep: str, tmp_path: Path) -> None:
    """bf16 in the files, fp32 to compute with: half as many bytes where it stays as it is stored."""
    backend = backends().get("simulated")
    if reason := backend.available():
        pytest.skip(reason)
    device, memory, cap = backend.device(0), backend.memory(0), 25_000_000
    of_card("qwen3-235b-a22b", tmp_path / "twin")
    tokens, logits = generate(whole(tmp_path / "twin"), 4)
    model = blueprint(tmp_path / "twin").model
    model.config._experts_implementation = "eager"
    with Checkpoint(tmp_path / "twin", model) as checkpoint:
        memory.cap(cap)
        try:
            budget = Budget(device=cap, host=host.private_memory() + (64 << 20), keep=keep)
            tiers = Tiers(model, checkpoint, {}, budget, device=device, reserve=4 << 20)
            rest = checkpoint.read({name: {} for name in checkpoint.names if name not in tiers.owned})
            place(model, {name: tensor.to(device) for name, tensor in rest.items()})
            for module in model.modules():
                module._buffers |= {name: each.to(device) for name, each in module._buffers.items() if each is not None}
            tiers.install()
            again, close = generate(model, 4, device=str(device))
            assert again == tokens and memory.peak() <= cap < sum(each.nbytes for each in whole(
                tmp_path / "twin").parameters())
            torch.testing.assert_close(close, logits, rtol=1e-5, atol=1e-5 * float(logits.abs().max()))
            assert tiers.statistics().stored_bytes > 0
            tiers.close()
        finally:
            memory.cap(None)
