"""Renames, filters and expected names on the names of a release."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.errors import TargetError
from dayzero.schema import Column, TensorGroup
from dayzero.stages.preflight.weights.loader import anywhere, arrivals, at_end, filter_text, hit, renamed


def group(pattern: str, layers: list[int], experts: list[int] | None = None) -> TensorGroup:
    none = Column([-1] * len(layers))
    return TensorGroup(pattern=pattern, shape=(2,), dtype="BF16", layer=Column(layers),
                       expert=Column(experts) if experts else none, file=none, start=none)


EXPERTS = group("model.layers.{L}.mlp.experts.{E}.w1.weight", [60, 60, 61, 61], [0, 61, 0, 61])


def names(found: list, kept: bool = True) -> list[str]:
    return [arrival.name(int(row)) for arrival in found for row in arrival.rows]


def hits(text: str, form: Callable, *groups: TensorGroup) -> list[str]:
    return [arrival.stored(int(row)) for arrival in arrivals(groups or [EXPERTS])
            for row in arrival.rows[hit(text, form(text), arrival)]]


@pytest.mark.parametrize(("text", "expected"), [
    ("model.layers.61.", ["model.layers.61.mlp.experts.0.w1.weight", "model.layers.61.mlp.experts.61.w1.weight"]),
    ("layers.61.", ["model.layers.61.mlp.experts.0.w1.weight", "model.layers.61.mlp.experts.61.w1.weight"]),
    ("experts.61.", ["model.layers.60.mlp.experts.61.w1.weight", "model.layers.61.mlp.experts.61.w1.weight"]),
    ("model.layers.6", [f"model.layers.{layer}.mlp.experts.{expert}.w1.weight" for layer in (60, 61)
                        for expert in (0, 61)]),
    ("ayers.61.", []), ("model.layers.7.", []), ("*.w1.weight", 4), ("experts.{e}.w1", 4), ("re:.*61.*w1", 3),
])
def test_what_a_filter_matches(text: str, expected: list[str] | int) -> None:
    found = hits(text, anywhere)
    assert len(found) == expected if isinstance(expected, int) else found == expected


@pytest.mark.parametrize(("text", "count"), [
    ("experts.{e}.w1.weight", 4), ("experts.{e}.w1", 4), ("experts.0.w1.weight", 2), ("experts.{e}.w2.weight", 0),
    ("w1.weight_scale", 0), (".weight", 4), ("model.layers.{L}.", 4), ("*", 4), ("experts.{e}", 0),
])
def test_what_an_expected_name_matches(text: str, count: int) -> None:
    assert len(hits(text, at_end)) == count


@pytest.mark.parametrize(("rename", "first"), [
    ({"strip": "model."}, "layers.60.mlp.experts.0.w1.weight"),
    ({"strip": "layers."}, "model.layers.60.mlp.experts.0.w1.weight"),  # not at the start
    ({"strip": ".weight"}, "model.layers.60.mlp.experts.0.w1"),
    ({"add": "language_model."}, "language_model.model.layers.60.mlp.experts.0.w1.weight"),
    ({"prefix": "model.", "to": "decoder."}, "decoder.layers.60.mlp.experts.0.w1.weight"),
    ({"from": "mlp.experts", "to": "ffn"}, "model.layers.60.ffn.0.w1.weight"),
    ({"replace": "experts.{e}.w1", "with": "experts.gate.{e}"}, "model.layers.60.mlp.experts.gate.0.weight"),
    ({"w1": "gate_proj"}, "model.layers.60.mlp.experts.0.gate_proj.weight"),
])
def test_what_a_rename_makes(rename: dict[str, str], first: str) -> None:
    found = renamed(arrivals([EXPERTS]), [rename])
    assert names(found)[0] == first
    assert sum(len(arrival.rows) for arrival in found) == 4


def test_a_rename_with_a_number_meets_only_its_layer() -> None:
    found = renamed(arrivals([EXPERTS]), [{"from": "model.layers.61.", "to": "mtp."}])
    assert sorted(names(found)) == [
        "model.layers.60.mlp.experts.0.w1.weight", "model.layers.60.mlp.experts.61.w1.weight",
        "mtp.mlp.experts.0.w1.weight", "mtp.mlp.experts.61.w1.weight"]
    assert {arrival.stored(int(row)) for arrival in found for row in arrival.rows} == {
        f"model.layers.{layer}.mlp.experts.{expert}.w1.weight" for layer in (60, 61) for expert in (0, 61)}


def test_what_is_not_understood_is_said() -> None:
    with pytest.raises(TargetError, match="renames"):
        renamed(arrivals([EXPERTS]), [{"twist": "a", "turn": "b"}])
    with pytest.raises(TargetError, match="filters"):
        filter_text({"twist": "a"})
    assert filter_text({"keep": "model."}) == ("model.", False)


@given(layers=st.lists(st.integers(0, 120), min_size=1, max_size=30), wanted=st.integers(0, 120))
def test_patterns_and_single_names_agree(layers: list[int], wanted: int) -> None:
    text = f"model.layers.{wanted}."
    mask = hit(text, anywhere(text), arrivals([group("model.layers.{L}.norm.weight", layers)])[0])
    assert np.array_equal(mask, np.array(layers) == wanted)


@pytest.mark.parametrize(("text", "name"), [
    ("re:(a+)+$", "a" * 60 + "b"), ("re:(.*)*x", "model." + "b" * 60), ("re:" + "a*" * 30 + "x", "a" * 2000),
    ("a*" * 30 + "x", "a" * 2000),
])  # fmt: skip
def test_no_text_takes_long_to_match(text: str, name: str) -> None:
    started = time.process_time()
    for ask in (lambda: hits(text, anywhere, group(name, [-1])),
                lambda: renamed(arrivals([group(name, [-1])]), [{"from": text, "to": ""}])):
        try:
            ask()
        except TargetError as error:
            assert "takes more than 0.25 s" in error.message
    assert time.process_time() - started < 3


@pytest.mark.parametrize("text", ["re:[", "re:(?R)", "re:a{99999999999}", "re:(?P<x>"])
def test_what_is_no_regular_expression(text: str) -> None:
    with pytest.raises(TargetError, match="is no regular expression"):
        hits(text, anywhere)
