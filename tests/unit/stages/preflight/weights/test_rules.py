"""Shapes of the matrices of a dense block against the config's width."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import tiny_release as tiny
from tests.support.config_release import on

from dayzero.stages.preflight import Case
from dayzero.stages.preflight.weights.rules import weights_shape
from dayzero.stages.read import read

DOWN, GATE, UP = (f"model.layers.{{L}}.mlp.{name}_proj.weight" for name in ("down", "gate", "up"))


def told(folder: Path, config: dict[str, object] | None = None, **shapes: tuple[int, int]) -> set[str]:
    """Subjects, where all layers have other shapes than usual for some matrices."""
    tensors = tiny.dense_tensors()
    for name, (shape, dtype) in tensors.items():
        tensors[name] = (shapes.get(name.split(".")[-2], shape), dtype)
    tiny.write(folder, tensors, tiny.CONFIG | (config or {}))
    return {one.subject for one in weights_shape(Case(read(folder), on()))}


@pytest.mark.parametrize(("shapes", "found"), [
    ({}, set()), ({"down_proj": (tiny.WIDTH, tiny.HIDDEN)}, {DOWN}),
    ({"gate_proj": (80, tiny.HIDDEN)}, {GATE}), ({"up_proj": (80, tiny.HIDDEN)}, {UP}),
    ({"down_proj": (tiny.WIDTH, tiny.HIDDEN), "gate_proj": (80, tiny.HIDDEN)}, {DOWN, GATE})])
def test_only_what_is_wrong_is_told(tmp_path: Path, shapes: dict[str, tuple[int, int]], found: set[str]) -> None:
    assert told(tmp_path, **shapes) == found


def test_a_config_that_is_wrong_is_told_once(tmp_path: Path) -> None:
    assert told(tmp_path, {"intermediate_size": 100}) == {DOWN}
