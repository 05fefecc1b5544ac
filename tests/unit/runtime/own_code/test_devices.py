"""Devices that code names, where there are only the host and meta."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from dayzero.runtime.own_code.devices import only_meta, staying  # noqa: E402


def test_an_accelerator_is_meta() -> None:
    plain = torch.cuda.current_device
    with only_meta():
        here = torch.ones(2)
        made = [torch.empty(2, device="cuda"), torch.zeros(2, device=torch.device("cuda:1")), torch.ones(2, device=0),
                torch.arange(2, device=torch.cuda.current_device()), here.cuda(), here.to("cuda"),
                here.to(torch.device("cuda")), here.to(device="cuda", dtype=torch.float16), here.to(0),
                torch.nn.Linear(2, 2).to("cuda").weight, torch.nn.Linear(2, 2, device="cuda").weight]
        assert all(each.is_meta for each in made) and made[7].dtype == torch.float16
        assert here.to("cpu").tolist() == torch.ones(2, device="cpu").tolist() == here.cpu().tolist() == [1, 1]
        assert here.to(torch.int64).dtype == torch.int64
        with pytest.raises(NotImplementedError):
            torch.empty(2, device="meta").to("cpu")
    assert torch.cuda.current_device is plain
    with pytest.raises((RuntimeError, AssertionError)):
        torch.empty(2, device="cuda:99")


def test_what_is_on_meta_stays() -> None:
    with staying():
        away = torch.empty(2, device="meta")
        assert away.to("cpu").is_meta and away.cpu().is_meta and away.to(device="cpu", dtype=torch.int8).is_meta
        assert not torch.ones(2, device="cpu").to("cpu").is_meta
