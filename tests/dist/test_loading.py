"""Two ranks load their shares at the same time: nothing is lost between them, and neither holds more than its share."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RANK = '''
import json, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from dayzero.runtime.loading import Checkpoint
from dayzero.runtime.memory import PeakSampler, release_unused

root, share, out = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
cuts = {name: {int(axis): tuple(map(tuple, kept)) for axis, kept in cut.items()} for name, cut in share.items()}
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(root), dtype=torch.bfloat16)
Checkpoint(root, model).close()
release_unused()
with PeakSampler(lambda: "loading") as sampler:
    tensors = Checkpoint(root, model).read(cuts, threads=2)
size = sum(tensor.nbytes for tensor in tensors.values())
if out:
    save_file(tensors, out)
print(json.dumps([size, sampler.peak - sampler.base]))
'''
Share = dict[str, dict[int, list[list[int]]]]


def _model(root: Path, **sizes: int) -> dict[str, tuple[int, ...]]:
    """A mixture of experts; the shapes of the model's tensors."""
    config = AutoConfig.for_model("qwen3_moe", num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                                  num_experts_per_tok=2, **sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(root, max_shard_size="100MB")
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _load(root: Path, shares: list[Share], outs: list[str]) -> list[tuple[int, int]]:
    """(bytes of the share, most private memory while it was loaded) of each rank; they run at the same time."""
    running = [subprocess.Popen([sys.executable, "-c", RANK, str(root), json.dumps(share), out], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
               for share, out in zip(shares, outs, strict=True)]  # fmt: skip
    told = []
    for rank in running:
        out, err = rank.communicate()
        assert rank.returncode == 0, err
        told.append(tuple(json.loads(out)))
    return told


def _half(name: str, shape: tuple[int, ...], rank: int, kind: str) -> dict[int, list[list[int]]]:
    def part(first: int, last: int) -> list[int]:
        half = (last - first) // 2
        return [first + rank * half, first + (rank + 1) * half]

    if ".experts." in name and kind == "experts":
        return {0: [part(0, shape[0])]}
    if "gate_up_proj" in name:
        return {1: [part(0, shape[1] // 2), part(shape[1] // 2, shape[1])]}
    if "down_proj" in name or "o_proj" in name:
        return {len(shape) - 1: [part(0, shape[-1])]}
    return {0: [part(0, shape[0])]} if len(shape) > 1 and "mlp.gate." not in name else {}


def _joined(name: str, parts: list[torch.Tensor], cut: dict[int, list[list[int]]]) -> torch.Tensor:
    for axis, kept in cut.items():
        if len(kept) > 1:
            halves = [part.chunk(2, axis) for part in parts]
            return torch.cat([half[index] for index in range(2) for half in halves], axis)
        return torch.cat(parts, axis)
    assert torch.equal(*parts), name
    return parts[0]


@pytest.mark.parametrize("kind", ["width", "experts"])
def test_the_shares_of_two_ranks_are_the_whole(kind: str, tmp_path: Path) -> None:
    shapes = _model(tmp_path / "m", hidden_size=128, moe_intermediate_size=64, num_experts=8, num_hidden_layers=2,
                    vocab_size=512)
    shares = [{name: _half(name, shape, rank, kind) for name, shape in shapes.items()} for rank in range(2)]
    outs = [str(tmp_path / f"{rank}.safetensors") for rank in range(2)]
    _load(tmp_path / "m", shares, outs)
    mine: list[dict[str, Any]] = [load_file(out) for out in outs]
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.bfloat16).state_dict()
    assert set(mine[0]) == set(mine[1]) == set(whole)
    for name, tensor in whole.items():
        assert torch.equal(_joined(name, [each[name] for each in mine], shares[0][name]), tensor), name


def test_a_rank_holds_its_share_and_little_more(tmp_path: Path) -> None:
    """200 MB each, of which an expert's matrices are 6: neither the release nor a second copy of the share fits into
    the 100 MB that are allowed beside it."""
    shapes = _model(tmp_path / "m", hidden_size=1024, moe_intermediate_size=1024, num_experts=16, num_hidden_layers=4,
                    vocab_size=512)
    shares = [{name: _half(name, shape, rank, "width") for name, shape in shapes.items()} for rank in range(2)]
    for size, peak in _load(tmp_path / "m", shares, ["", ""]):
        assert size > 190e6
        assert peak <= 1.15 * size + 40e6
