from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.errors import LayoutError
from dayzero.schema import Layout
from dayzero.schema.target import LayoutRequest

DEGREE = st.integers(1, 64)


@given(DEGREE, DEGREE, DEGREE)
def test_world_size_is_the_product(tp: int, pp: int, dp: int) -> None:
    layout = Layout(tp=tp, pp=pp, dp=dp)
    assert layout.check_world(tp * pp * dp) is layout
    with pytest.raises(LayoutError, match="devices, but there are"):
        layout.check_world(tp * pp * dp + 1)


@given(DEGREE, DEGREE, DEGREE)
def test_text_can_be_parsed(tp: int, pp: int, dp: int) -> None:
    layout = Layout(tp=tp, pp=pp, dp=dp)
    assert Layout.parse(layout.text) == layout


@pytest.mark.parametrize("text", ["tp", "tp=", "tp=0", "tp=-1", "tp=2.5", "xx=2", "ep=3,tp=2", "tp=4,attention_tp=3",
                                  "tp=²", "tp=2,tp=3", "tp=2,tp=2", "tp=" + "9" * 5000, "tp=10000000", "x" * 5000])
def test_wrong_degrees(text: str) -> None:
    with pytest.raises(LayoutError) as caught:
        Layout.parse(text)
    assert len(caught.value.message) < 120 and "\n" not in caught.value.message


@pytest.mark.parametrize("tp", [1, 4])
def test_attention_over_all_tp_ranks_is_one_layout_however_it_is_written(tp: int) -> None:
    plain = Layout(tp=tp)
    for same in (Layout(tp=tp, attention_tp=tp), Layout.parse(f"tp={tp},attention_tp={tp}"),
                 LayoutRequest(tp=tp, attention_tp=tp).resolve(),
                 msgspec.convert({"tp": tp, "attention_tp": tp}, Layout),
                 msgspec.structs.replace(plain, attention_tp=tp)):
        assert same == plain and hash(same) == hash(plain) and same.attention_degree == tp
    assert Layout(tp=4, attention_tp=2) != Layout(tp=4)


def test_experts_keep_their_width_when_spread() -> None:
    assert [Layout(tp=8, ep=ep).expert_tp for ep in (1, 2, 8)] == [8, 4, 1]
    assert Layout(tp=4, dp=4, ep=16).expert_tp == 1
