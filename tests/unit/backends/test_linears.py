"""Linears are computed by another library, only where their tensors are what it takes, and put back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dayzero.backends.cpu import BACKEND as CPU  # noqa: E402
from dayzero.backends.linears import linears_of  # noqa: E402


class Own(torch.nn.Linear):
    """Somebody's own class may compute something else."""


def _used(model: torch.nn.Module, values: torch.Tensor) -> set[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        model(values)
    return {event.key for event in seen.key_averages()} & {"mkldnn::_linear_pointwise", "aten::linear"}


@pytest.mark.parametrize("rows", [(1,), (1, 1), (5,), (2, 3)])
def test_products_are_the_same_and_put_back(rows: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.Linear(48, 16, bias=False), Own(16, 4))
    values = torch.randn(*rows, 32)
    with torch.no_grad():
        plain = model(values)
        with linears_of(model, onednn=True) as count:
            assert count == 2  # not the one of another class
            assert torch.allclose(model(values), plain, rtol=1e-5, atol=1e-6)
            assert model(values).shape == plain.shape
            assert _used(model[:2], values) == {"mkldnn::_linear_pointwise"}
            with CPU.optimizations(model, linear="library"):
                assert torch.equal(model(values), plain)
            assert "forward" in vars(model[0])
        assert torch.equal(model(values), plain)
    assert not any("forward" in vars(each) for each in model)


def test_other_tensors_and_gradients_take_the_way_of_the_library() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8))
    with linears_of(model, onednn=True):
        assert _used(model, torch.randn(2, 8)) == {"aten::linear"}  # gradients are wanted
        with torch.no_grad():
            assert model(torch.randn(0, 8)).shape == (0, 8)
            assert _used(model.to(torch.bfloat16), torch.randn(2, 8).to(torch.bfloat16)) == {"aten::linear"}
            model.to(torch.float32)
            model[0].weight = torch.nn.Parameter(torch.randn(8, 8).t())
            assert _used(model, torch.randn(2, 8)) == {"aten::linear"}  # not contiguous
            model[0].weight = torch.nn.Parameter(torch.randn(8, 8))
            model[0].bias = torch.nn.Parameter(torch.randn(8, 2)[:, 0])  # its strides would be passed over
            assert _used(model, torch.randn(2, 8)) == {"aten::linear"}
