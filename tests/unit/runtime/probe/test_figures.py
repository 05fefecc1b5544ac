"""Rates of a device: measured ones are plausible, what it cannot do is told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from dayzero.runtime.probe import figures  # noqa: E402  (needs torch)


def test_rates_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "ROUNDS", 2)
    world = SimpleNamespace(device=torch.device("cpu"), meet=lambda: None)
    found, missing = figures.measure_figures(world, 0.1)
    assert {"memory_bandwidth", "matmul.bf16", "matmul.f16", "matmul.f32"} == set(found)
    assert all(len(rates) == 2 and min(rates) > 1e6 for rates in found.values())
    assert missing == {"host_to_device, device_to_host": "the device is the host"}


def test_copies_and_what_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for way in ("host_to_device", "device_to_host"):
        assert figures._copy(torch.device("cpu"), way, pinned=False)(0.0) > 1e6

    def broken() -> None:
        raise RuntimeError("no such product\nand a trace")

    monkeypatch.setattr(figures, "_rates", lambda device: {"matmul.odd": broken})
    world = SimpleNamespace(device=torch.device("cpu"), meet=lambda: None)
    found, missing = figures.measure_figures(world, 0.1)
    assert not found and missing["matmul.odd"] == "no such product"
