"""Norms are recognised by what they compute, replaced by one operator, and put back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dayzero.backends.cpu import BACKEND as CPU  # noqa: E402
from dayzero.backends.norms import norms_of  # noqa: E402


class Norm(torch.nn.Module):
    """The usual one; `added` to the weight, `power` of the values."""

    def __init__(self, added: float = 0.0, power: int = 2) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.eps, self.added, self.power = 1e-6, added, power

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(self.power).mean(-1, keepdim=True) + self.eps)
        return (wide * (self.added + self.weight.float())).to(x.dtype)


class Gated(Norm):
    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * gate


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_are_replaced_and_put_back(dtype: torch.dtype) -> None:
    model = torch.nn.Sequential(Norm(), Norm(added=1.0), Norm(power=4), torch.nn.Linear(8, 8)).to(dtype)
    values = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    plain = model(values)
    with norms_of(model, fused=True) as count:
        assert count == 2  # not the one that computes something else
        assert ["forward" in vars(each) for each in model] == [True, True, False, False]
        close = 3e-2 if dtype == torch.bfloat16 else 1e-5
        assert torch.allclose(model(values), plain, rtol=close, atol=close)
        with CPU.optimizations(model, norm="plain"):
            assert not any("forward" in vars(each) for each in model)
        assert "forward" in vars(model[0])
    assert not any("forward" in vars(each) for each in model)
    assert torch.equal(model(values), plain)


def test_what_takes_more_than_one_tensor_stays() -> None:
    with norms_of(torch.nn.Sequential(Gated()), fused=True) as count:
        assert count == 0


def test_weights_may_change_while_it_is_replaced() -> None:
    model = torch.nn.Sequential(Norm())
    values = torch.randn(3, 8)
    with norms_of(model, fused=True):
        model[0].weight.data.mul_(3)
        inside = model(values)
    assert torch.allclose(inside, model(values), rtol=1e-5)
