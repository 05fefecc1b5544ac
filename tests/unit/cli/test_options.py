"""What is made of options before any stage sees them."""

from __future__ import annotations

import pytest

from dayzero.cli.options import layouts_of
from dayzero.errors import LayoutError
from dayzero.schema import Layout


def test_layouts() -> None:
    assert layouts_of(None) is None and layouts_of([]) is None
    assert layouts_of(["tp=2", "tp=1"]) == (Layout(tp=2), Layout())


@pytest.mark.parametrize("empty", ["", "  ", ",", " , "])
def test_an_empty_layout_is_a_slip(empty: str) -> None:
    with pytest.raises(LayoutError, match="a layout is empty"):
        layouts_of(["tp=2", empty])
