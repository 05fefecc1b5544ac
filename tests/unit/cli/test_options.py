"""What is made of options before any stage sees them."""

from __future__ import annotations

import pytest

from dayzero.cli.options import layouts_of, seconds_of
from dayzero.errors import LayoutError, UsageError
from dayzero.schema import Layout


def test_layouts() -> None:
    assert layouts_of(None) is None and layouts_of([]) is None
    assert layouts_of(["tp=2", "tp=1"]) == (Layout(tp=2), Layout())


@pytest.mark.parametrize("empty", ["", "  ", ",", " , "])
def test_an_empty_layout_is_a_slip(empty: str) -> None:
    with pytest.raises(LayoutError, match="a layout is empty"):
        layouts_of(["tp=2", empty])


def test_times_have_a_unit() -> None:
    assert seconds_of("--tpot", None) is None
    assert seconds_of("--tpot", "15ms") == pytest.approx(0.015) and seconds_of("--ttft", "2 s") == 2.0
    assert seconds_of("--ttft", ".5min") == 30.0


@pytest.mark.parametrize("wrong", ["15", "", "0ms", "-1s", "ms", "1h", "1e3s", "nan s"])
def test_times_without_one_are_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="--tpot"):
        seconds_of("--tpot", wrong)
