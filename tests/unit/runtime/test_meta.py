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
