from __future__ import annotations

import pytest

from dayzero.errors import UsageError
from dayzero.units import format_bytes, format_count, format_flops, format_rate, format_seconds, parse_bytes


@pytest.mark.parametrize(("text", "count"), [
    ("1.5GB", 1_500_000_000), ("2 GiB", 2**31), ("123", 123), ("80gib", 80 * 2**30), ("1k", 1000), ("7 B", 7)])
def test_parse_bytes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1.5.2GB", "1 XB", "1e9", "1 GiBB", "i"])
def test_parse_bytes_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="not a size"):
        parse_bytes(text)


def test_formats() -> None:
    assert format_bytes(1_560_860_324_864) == "1.42 TiB"
    assert format_bytes(512) == "512 B"
    assert format_count(2_779_931_644_160) == "2.78 T"
    assert format_rate(4.8e12) == "4.80 TB/s"
    assert format_flops(3.2e12) == "3.20 TFLOP"
    assert [format_seconds(s) for s in (2.5e-6, 0.0123, 1.5, 600.0, 7200.0)] == ["2.5 us", "12.3 ms", "1.5 s", "10 min",
                                                                               "2 h"]
