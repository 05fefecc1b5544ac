"""From what ranks found to a topology."""

from __future__ import annotations

import msgspec
import pytest

from dayzero.runtime.probe.compose import compose, named
from dayzero.runtime.probe.found import Call, Found
from dayzero.schema import COLLECTIVES


def call(level: int, collective: str, size: int, seconds: float) -> Call:
    return Call(level=level, collective=collective, ranks=2, groups=2, size=size,
                seconds=[seconds, 3 * seconds, seconds])


def found(host: str, device: str = "NVIDIA H200") -> Found:
    calls = [call(level, name, size, (1 + 4 * level) * (1e-5 + size / 1e10))
             for level in (0, 1) for name in COLLECTIVES for size in (1 << 10, 1 << 16, 1 << 24)]
    return Found(host=host, device=device, backend="b", domains=(2, 4), calls=calls, environment={"torch": "2"},
                 figures={"memory_bandwidth": [4e12, 5e12], "matmul.bf16": [7e14]}, missing={"x": "none here"})


def test_levels_figures_and_names() -> None:
    made = compose([found("a"), found("a"), found("b"), found("b")], "infiniband", 12.34)
    assert (made.device, made.nodes, made.devices_per_node, made.network) == ("h200", 2, 2, "infiniband")
    assert [(level.name, level.devices) for level in made.levels] == [("node", 2), ("infiniband", 4)]
    inner, outer = (level.reached["all_reduce"] for level in made.levels)
    # of two ranks: 2 messages, and as many bytes as the buffer has
    assert abs(inner.latency / 5e-6 - 1) < 1e-6 and abs(inner.bandwidth / 1e10 - 1) < 1e-6
    assert abs(outer.bandwidth / 2e9 - 1) < 1e-6
    assert made.levels[0].timings[0].spread == pytest.approx((2.0,) * 3)
    assert [(figure.name, figure.value, figure.unit, figure.rounds) for figure in made.figures] == [
        ("memory_bandwidth", 4.5e12, "B/s", 8), ("matmul.bf16", 7e14, "FLOP/s", 4)]
    assert made.missing == {"x": "none here"} and made.seconds == 12.3
    assert made.name.startswith("h200-2x2-infiniband-20") and made == named(made)


def test_the_host_itself_and_unknown_devices() -> None:
    assert compose([found("a", "")], "", 1.0).device == "local"
    assert compose([found("a", "Some New Chip 9!")], "", 1.0).device == "some-new-chip-9"
    assert len(compose([found("a", "chip " * 99), found("b")], "net" * 99, 1.0).name) < 120  # it is a file's name


def test_content_decides_the_name() -> None:
    made = compose([found("a")], "", 1.0)
    assert named(msgspec.structs.replace(made, backend="other")).name != made.name
