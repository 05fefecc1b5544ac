from __future__ import annotations

from dayzero.units import (
    format_bytes,
    format_count,
    format_flops,
    format_interval,
    format_rate,
    format_seconds,
)


def test_formats() -> None:
    assert format_bytes(1_560_860_324_864) == "1.42 TiB"
    assert format_bytes(512) == "512 B"
    assert format_count(2_779_931_644_160) == "2.78 T"
    assert format_rate(4.8e12) == "4.80 TB/s"
    assert format_flops(3.2e12) == "3.20 TFLOP"
    assert [format_seconds(s) for s in (2.5e-6, 0.0123, 1.5, 600.0, 7200.0)] == ["2.5 us", "12.3 ms", "1.5 s", "10 min",
                                                                               "2 h"]


def test_intervals_have_three_significant_figures_in_the_unit_of_the_figure() -> None:
    assert format_interval(279.1, 164.2, 388.9, "tokens/s") == "279 tokens/s (164 to 389)"
    assert format_interval(0.9, 0.45, 1.234, "s") == "900 ms (450 to 1230)"
    assert format_interval(12_345.0, 9_000.0, 20_000.0, "tokens/s") == "12.3 ktokens/s (9 to 20)"
    assert format_interval(7200.0, 3600.0, 9000.0, "s") == "2 h (1 to 2.5)"
    assert format_interval(0.0, 0.0, 0.0, "s") == "0 us (0 to 0)"
