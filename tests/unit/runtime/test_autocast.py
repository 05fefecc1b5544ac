"""torch.autocast for tensors on the meta device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


def test_the_meta_device_has_none() -> None:
    with pytest.raises(RuntimeError):
        torch.autocast(device_type="meta", enabled=False)  # when this passes, the file is of no use any more


def test_it_does_nothing_on_meta_and_works_elsewhere() -> None:
    from dayzero.runtime.autocast import meta_autocast

    plain = torch.autocast.__init__
    with meta_autocast():
        for told in ({"enabled": False}, {"enabled": True, "dtype": torch.float16}, {}):
            with torch.autocast("meta", **told):
                left = torch.ones(2, 2, device="meta")
                assert (left @ left).dtype == torch.float32
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            left = torch.ones(2, 2)
            assert (left @ left).dtype == torch.bfloat16
            with torch.autocast("meta", enabled=False):
                assert (left @ left).dtype == torch.bfloat16
            assert torch.is_autocast_enabled() == torch.is_autocast_enabled("cuda") is False
            assert torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("meta")
    assert torch.autocast.__init__ is plain
    with pytest.raises(RuntimeError):
        torch.is_autocast_enabled("meta")
