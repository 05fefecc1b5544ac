"""Where ranks stand, and which layouts are refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import tiny

from dayzero.runtime.mesh import Place, indivisible, refusal
from dayzero.schema import Layout, ModelSpec, WeightFamily


@pytest.mark.parametrize(("text", "word"), [
    ("tp=2,cp=2", "context"), ("tp=4,attention_tp=2", "attention"), ("tp=2,dp=3,ep=3", "ep=3"),
])
def test_refused(text: str, word: str) -> None:
    assert word in refusal(Layout.parse(text))


@pytest.mark.parametrize("text", ["", "tp=2", "pp=3", "dp=4", "tp=2,ep=2", "tp=2,dp=2", "pp=2,dp=2", "tp=2,ep=2,dp=2",
                                  "tp=2,pp=2", "dp=2,ep=2", "tp=4,ep=2", "tp=2,pp=2,ep=2"])
def test_tried(text: str) -> None:
    assert refusal(Layout.parse(text)) == ""


def _model(folder: Path, *, scheme: str = "bf16", experts: int = 0) -> ModelSpec:
    """Two layers, in which what 9 heads of 64 read and give is 576 wide, as in SmolLM2-135M."""
    (folder / "config.json").write_text(
        '{"architectures": ["A"], "model_type": "a", "vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 2}')
    family = WeightFamily(role="mlp.up", pattern="w", shape=(1536, 576), dtype="BF16", scheme=scheme, split="width",
                          axis=0, count=2, layers=(0, 1), experts=experts, parameters=1, stored_bytes=2)
    return msgspec.structs.replace(tiny.release(folder).model, families=(family,))


@pytest.mark.parametrize(("text", "experts", "word"), [
    ("pp=3", 0, "2 layers cannot be shared out to 3 stages"), ("tp=7", 0, "no dimension is a multiple of 7"),
    ("tp=4,ep=4", 6, "6 experts cannot be dealt out evenly to 4 groups"),
])
def test_what_a_model_is_too_small_for(tmp_path: Path, text: str, experts: int, word: str) -> None:
    assert word in indivisible(_model(tmp_path, experts=experts), Layout.parse(text))


def test_what_only_ranks_can_tell(tmp_path: Path) -> None:
    for text in ("", "tp=2", "tp=3", "pp=2", "dp=7", "tp=2,ep=2"):  # 9 heads on 2 ranks: other weights can be shared
        assert indivisible(_model(tmp_path), Layout.parse(text)) == ""
    assert indivisible(_model(tmp_path, scheme="int4"), Layout(tp=7)) == ""


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_places_are_all_different_and_tp_is_innermost(tp: int, pp: int, dp: int) -> None:
    layout = Layout(tp=tp, pp=pp, dp=dp)
    places = [Place(layout, rank) for rank in range(layout.world_size)]
    assert len({(place.replica, place.stage, place.index) for place in places}) == layout.world_size
    assert {place.replica for place in places} == set(range(dp))
    assert {place.stage for place in places} == set(range(pp))
    assert sum(place.first_of_tp for place in places) == pp * dp
    for place in places:
        group = places[place.rank - place.rank % tp:][:tp]
        assert {(each.replica, each.stage) for each in group} == {(place.replica, place.stage)}
