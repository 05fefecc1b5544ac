"""Files of gradients: equal runs leave equal bytes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from dayzero.runtime.dumps import Sketches
from dayzero.runtime.gradients import gradients
from dayzero.schema import Layout


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8)

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=self.head(self.embed(input_ids)))


def test_equal_runs_leave_equal_files(tmp_path: Path) -> None:
    """The format's writer puts the entries beside the tensors in an order of chance, another one each time."""
    place = SimpleNamespace(layout=Layout(), replica=0, first_of_tp=True)
    mesh = SimpleNamespace(place=place, average_over_replicas=lambda value: value)
    for number in range(12):
        gradients(_Model(), None, torch.tensor([[1, 2, 3], [4, 5, 6]]), mesh,
                  tmp_path / f"gradients-rank-{number}.safetensors")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    assert Sketches(tmp_path).rows == 2
