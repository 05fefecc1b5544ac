"""Experts in a list of modules, as the code of many releases has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dayzero.runtime.building import alike, packed
from dayzero.runtime.tiers import Tiers

WIDE, EXPERTS, LAYERS, CHOSEN = 16, 6, 3, 2


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDE, 32), nn.Linear(32, WIDE, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(torch.relu(self.up(hidden)))
        return made


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDE))

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, index = (hidden @ self.weight.T).softmax(-1).topk(CHOSEN, -1)
        return index, weights


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.mix = Router(), nn.Linear(WIDE, WIDE)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.mix(hidden)
        index, weights = self.router(hidden)
        out = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            rows, choice = torch.where(index == number)
            if len(rows):
                out[rows] += expert(hidden[rows]) * weights[rows, choice, None]
        return hidden + out


class Model(nn.Module):
    """What `decoder_layers` needs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, WIDE), nn.Linear(WIDE, 50)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))

    def get_decoder(self) -> nn.Module:
        return self

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.table(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        made: torch.Tensor = self.head(hidden)
        return made


class State:
    """A checkpoint in memory."""

    repaired = 0

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self.reads: list[str] = []

    def _cut(self, name: str, ranges: Any) -> torch.Tensor:
        tensor = self.tensors[name]
        for axis, kept in (ranges or {}).items():
            tensor = torch.cat([tensor.narrow(axis, first, last - first) for first, last in kept], axis)
        return tensor

    def fill(self, name: str, ranges: Any, out: torch.Tensor) -> None:
        self.reads.append(name)
        out.copy_(self._cut(name, ranges))

    def bytes(self, name: str, ranges: Any = None) -> int:
        return self._cut(name, ranges).nbytes

    def shape(self, name: str, ranges: Any = None) -> tuple[int, ...]:
        return tuple(self._cut(name, ranges).shape)


def models() -> tuple[Model, Model, State]:
    torch.manual_seed(0)
    model = Model().requires_grad_(False)
    with torch.device("meta"):
        empty = Model()
    state = State(dict(model.state_dict()))
    return model, empty, state


@pytest.mark.parametrize("room", [0, 1 << 12, 1 << 20])
def test_same_bits(room: int) -> None:
    model, empty, state = models()

    class Least(Tiers):
        def _divide(self, *_: Any) -> Any:
            from dayzero.runtime.tiers.budget import split

            self._host_room = 0
            return split(self._sizes, self._sizes.least() + room, "--host-memory", 0)

    tiers = Least(empty, state, {})
    for name, tensor in state.tensors.items():
        if name not in tiers.owned:
            path, _, leaf = name.rpartition(".")
            empty.get_submodule(path)._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
    tiers.install()
    with torch.no_grad():
        for ids in (torch.arange(20), torch.tensor([3]), torch.tensor([4])):
            assert torch.equal(empty(ids), model(ids))
    record = tiers.statistics()
    assert record.experts == LAYERS * EXPERTS and record.passes == 3
    if room == 1 << 20:
        assert record.slots == LAYERS * EXPERTS and record.misses <= LAYERS * EXPERTS
    else:
        assert all(each.is_meta for each in empty.layers[0].experts.parameters())  # nothing old is left in them
    tiers.close()


def test_an_expert_that_nobody_chose_is_not_read() -> None:
    _, empty, state = models()
    tiers = Tiers(empty, state, {}, foresight="none")
    for name, tensor in state.tensors.items():
        if name not in tiers.owned:
            path, _, leaf = name.rpartition(".")
            empty.get_submodule(path)._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
    tiers.install()
    state.reads.clear()
    with torch.no_grad():
        empty(torch.tensor([7]))
    assert len(state.reads) == LAYERS * CHOSEN * 3  # up.weight, up.bias, down.weight
    tiers.close()


def test_structure_alone_decides() -> None:
    model = Model()
    assert alike(model.layers[0].experts) and not packed(model.layers[0].experts)
    assert not alike(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 3)])) and not alike(nn.ModuleList([Expert()]))
    assert not packed(nn.Linear(2, 2)) and not packed(nn.Conv1d(4, 4, 3))
