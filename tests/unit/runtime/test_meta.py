"""What model code does to tensors without values."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


def test_without_it_there_is_an_error() -> None:
    for call in (lambda: torch.autocast(device_type="meta", enabled=False), lambda: torch.is_autocast_enabled("meta")):
        with pytest.raises(RuntimeError):
            call()  # when one passes, its half is of no use any more


def test_mixed_precision_is_off_on_meta_and_works_elsewhere() -> None:
    from dayzero.runtime.meta import meta_autocast

    plain, enabled = torch.autocast.__init__, torch.is_autocast_enabled
    with meta_autocast():
        for told in ({"enabled": False}, {"enabled": True, "dtype": torch.float16}, {}):
            with torch.autocast("meta", **told):
                left = torch.ones(2, 2, device="meta")
                assert (left @ left).dtype == torch.float32 and not torch.is_autocast_enabled("meta")
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            left = torch.ones(2, 2)
            assert (left @ left).dtype == torch.bfloat16
            with torch.autocast("meta", enabled=False):
                assert (left @ left).dtype == torch.bfloat16
            assert torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled()
    assert torch.autocast.__init__ is plain and torch.is_autocast_enabled is enabled


def test_what_has_no_values_is_not_filled() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    from dayzero.runtime.meta import unfilled

    ran = []

    class Ran(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ran.append(str(func))
            return func(*args, **(kwargs or {}))

    tensor = torch.empty(8, 8, device="meta")
    with unfilled(), Ran():
        assert tensor.normal_(mean=0.0, std=0.02) is tensor and tensor.uniform_(-1, 1) is tensor
        assert ran == []  # a random fill of a tensor without values takes several operators, and a millisecond
    with unfilled():
        assert torch.empty(3).fill_(2).tolist() == [2, 2, 2] and torch.ones(2).zero_().sum() == 0
        assert torch.zeros(100).normal_(5, 0.1).mean() > 4
    assert "normal_" not in vars(torch.Tensor) and torch.zeros(100).normal_(5, 0.1).mean() > 4


def test_a_module_that_is_made_elsewhere_stays_on_meta() -> None:
    from dayzero.runtime.meta import kept_empty

    plain = torch.nn.Module.to_empty
    with kept_empty(), torch.device("meta"):
        assert torch.nn.utils.skip_init(torch.nn.Linear, 2, 2).weight.is_meta
    assert torch.nn.Module.to_empty is plain and not torch.nn.utils.skip_init(torch.nn.Linear, 2, 2).weight.is_meta


def test_only_parameters_have_no_values() -> None:
    from dayzero.runtime.meta import parameters_on_meta, without_values

    class Asks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rates = [x.item() for x in torch.linspace(0, 1, 3)]
            self.linear = torch.nn.Linear(2, 2)
            self.plain = torch.ones(2)
            self.register_buffer("kept", torch.ones(2))

    with parameters_on_meta():
        made = Asks()
    assert made.rates == [0.0, 0.5, 1.0] and made.linear.weight.is_meta and not made.plain.is_meta
    made = without_values(made)
    assert made.plain.is_meta and made.kept.is_meta and not torch.nn.Linear(2, 2).weight.is_meta
