"""Replays of the shipped traces: the default is what needs least, by numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dayzero.runtime.pool import DEFAULT, BestFit, Slab
from dayzero.runtime.replay import Replay, read_trace, replay, trace_of
from dayzero.runtime.replay.replaying import Pool, least, on_device, served

NAMES = {BestFit: "best fit"}


@pytest.fixture(scope="module")
def replays(root: Path) -> dict[str, Replay]:
    paths = sorted((root / "benchmarks" / "traces").glob("*.json"))
    return {path.stem: replay(read_trace(path)) for path in paths}


@pytest.mark.slow
def test_the_default_needs_least_on_every_shipped_trace(replays: dict[str, Replay]) -> None:
    assert set(replays) == {"blocks", "serve", "train"}
    for found in replays.values():
        needs = {one.allocator: one.needs for one in found.results}
        assert needs[NAMES[DEFAULT]] <= min(needs.values()), found.trace


@pytest.mark.slow
def test_figures_of_the_shipped_traces(replays: dict[str, Replay]) -> None:
    """What bench_pool.py prints; they follow from the traces and the rules, not from the machine."""
    found = {name: {one.allocator: one.fragmentation for one in made.results} for name, made in replays.items()}
    assert found["train"] == pytest.approx(
        {"best fit": 0.111, "torch expandable": 0.143, "torch caching": 0.189, "buddy": 0.203}, abs=0.002)
    assert found["serve"] == pytest.approx(
        {"best fit": 0.072, "torch expandable": 0.126, "torch caching": 0.311, "buddy": 0.159}, abs=0.002)
    assert found["blocks"]["slab"] < 0.002


@pytest.mark.slow
def test_needs_lie_between_the_peak_and_what_is_reserved_with_room(replays: dict[str, Replay]) -> None:
    for found in replays.values():
        for one in found.results:
            assert found.peak <= one.needs
            assert one.fragmentation == 1 - found.peak / one.needs
            if one.kind == "pool":
                assert one.seconds > 0


def test_a_trace_of_equal_blocks_is_served_by_a_slab_of_exactly_their_size() -> None:
    trace = trace_of("x", [(address, 1000, 0) for address in range(1, 11)])
    assert served(trace, Pool(Slab(10_000, 1000)))
    assert not served(trace, Pool(Slab(9_999, 1000)))
    assert [one.allocator for one in replay(trace).results if one.allocator == "slab"] == ["slab"]
    mixed = trace_of("y", [(1, 1000, 0), (2, 999, 0)])
    assert "slab" not in {one.allocator for one in replay(mixed).results}


def test_the_least_memory_is_the_least() -> None:
    """Two of three blocks are freed with a third between them: 2048 bytes more are needed than are in use."""
    trace = trace_of("x", [(1, 1024, 0), (2, 1024, 0), (3, 1024, 0), (1, -1024, 0), (3, -1024, 0), (4, 2048, 0)])
    needs, _ = least(trace, lambda nbytes: Pool(BestFit(nbytes, small=0)), 10_000)
    assert (trace.peak, needs) == (3072, 4096)  # 1024 free, 1024 used, and 1024 free join 1024 behind them


def test_the_real_allocator_is_replayed_where_a_device_is(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of("x", [(1, 1000, 0), (2, 5000, 0), (1, -1000, 0)])
    if not torch.accelerator.is_available():
        assert list(on_device(trace)) == []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    for name, value in {"empty_cache": None, "reset_peak_memory_stats": None, "memory_reserved": 100,
                        "max_memory_reserved": 8100}.items():
        monkeypatch.setattr(torch.accelerator.memory, name, lambda value=value: value)
    (found,) = on_device(trace)
    assert (found.kind, found.reserved, found.fragmentation) == ("device", 8000, 1 - 6000 / 8000)
