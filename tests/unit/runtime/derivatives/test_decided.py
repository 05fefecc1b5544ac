"""A loss that jumps where a choice changes is smooth once the choice is kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dayzero.runtime.derivatives.decided import OtherWaysError, decided
from dayzero.runtime.derivatives.differences import differences


class Chooser:
    """Experts chosen by scores that nearly tie."""

    def __init__(self, choose: Callable[[torch.Tensor], torch.Tensor]) -> None:
        generator = torch.Generator().manual_seed(5)
        self.router = torch.randn(8, 4, generator=generator, requires_grad=True)
        self.experts, self.inputs = torch.randn(8, generator=generator), torch.randn(64, 4, generator=generator)
        self._choose = choose
        self.parameters = {"router": self.router}

    def value(self) -> torch.Tensor:
        return self._choose((self.inputs @ self.router.T).softmax(-1)).mul(self.experts).sum(-1).pow(2).mean()

    def loss(self) -> float:
        with torch.no_grad():
            return float(self.value())


def largest(scores: torch.Tensor) -> torch.Tensor:
    values, indices = scores.topk(2)
    return torch.zeros_like(scores).scatter(-1, indices, values)


def masked(scores: torch.Tensor) -> torch.Tensor:
    return scores.where(scores > scores.mean(-1, keepdim=True), 0.0)


def ranked(scores: torch.Tensor) -> torch.Tensor:
    values, indices = scores.sort(descending=True, dim=-1)
    return torch.zeros_like(scores).scatter(-1, indices[:, :3], values[:, :3])


def one(scores: torch.Tensor) -> torch.Tensor:
    values, indices = scores.max(dim=-1, keepdim=True)
    return torch.zeros_like(scores).scatter(-1, indices, values)


@pytest.mark.parametrize("choose", [largest, masked, ranked, one])
def test_gradients_of_a_chooser_are_the_slopes_of_its_loss(choose: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model = Chooser(choose)
    model.value().backward()
    assert model.router.grad is not None
    before = model.router.detach().clone()
    [right] = differences(model, {"router": model.router.grad}, 1)
    assert right.difference == pytest.approx(right.gradient, rel=1e-3) and not right.skipped
    assert torch.equal(model.router, before)
    [wrong] = differences(model, {"router": model.router.grad * 1.05}, 1)
    assert abs(wrong.difference / wrong.gradient - 1) > 0.03


def test_complex_numbers_are_no_decision() -> None:
    """Rotary embeddings of some releases are products of complex numbers."""
    model = Chooser(lambda scores: torch.view_as_real(torch.view_as_complex(scores.reshape(64, 4, 2)) * 1j).flatten(1))
    model.value().backward()
    assert model.router.grad is not None
    [right] = differences(model, {"router": model.router.grad}, 1)
    assert right.difference == pytest.approx(right.gradient, rel=1e-3)


def test_choices_are_those_of_the_first_run() -> None:
    scores = torch.tensor([1.0, 2.0, 3.0])
    chosen = decided(lambda: float(scores.topk(1).values))
    assert chosen() == 3.0
    scores[0] = 9.0
    assert chosen() == 3.0  # of the one that was the largest
    scores[2] = 4.0
    assert chosen() == 4.0


def test_a_run_that_goes_other_ways_is_refused() -> None:
    ways = iter((1, 2, 0))
    loss = decided(lambda: float(sum(torch.ones(3).topk(1).values for _ in range(next(ways)))))
    loss()
    for _ in range(2):
        with pytest.raises(OtherWaysError):
            loss()
