"""Rows of matrices as they were loaded: recorded of models, cut by ranks, and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import dumps, tiny
from tests.support.dumps import Step, Tensor, runs

from dayzero.runtime.golden import open_dump
from dayzero.schema import Layout
from dayzero.schema.golden import Held
from dayzero.stages.check.compare import compare, overview
from dayzero.stages.check.compare.weights import matrices, strips

torch = pytest.importorskip("torch")
GATE, UP = "model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight"


def recorded(root: Path, folder: Path, change: Any = None, dtype: str = "bf16", mode: Any = "whole") -> Path:
    from dayzero.runtime.recording import record
    from dayzero.runtime.substitution.reference import reference

    with reference(root, dtype) as made, torch.no_grad():
        if change is not None:
            change(made.watched)
        with record(made.watched, folder, weights=8, mode=mode):
            made.forward(torch.tensor([[5, 6, 7, 8, 9]]))
    return folder


def quantised(model: Any) -> None:
    gguf = pytest.importorskip("gguf")
    for parameter in model.parameters():
        if parameter.dim() == 2:
            form = gguf.GGMLQuantizationType.Q4_0
            parameter.copy_(torch.from_numpy(gguf.quants.dequantize(
                gguf.quants.quantize(parameter.float().numpy(), form), form)))


def swapped(model: Any) -> None:
    feed = model.model.layers[1].mlp
    feed.gate_proj.weight, feed.up_proj.weight = feed.up_proj.weight, feed.gate_proj.weight


@pytest.fixture(scope="module")
def root(tmp_path_factory: Any) -> Path:
    return tiny.dense(tmp_path_factory.mktemp("dense") / "model", num_hidden_layers=2)


@pytest.fixture(scope="module")
def reference_dump(root: Path, tmp_path_factory: Any) -> Path:
    return recorded(root, tmp_path_factory.mktemp("dumps") / "f32", dtype="f32")


def test_another_precision_is_the_same_weights(root: Path, reference_dump: Path, tmp_path: Path) -> None:
    found = compare(reference_dump, recorded(root, tmp_path / "bf16"))
    assert found.passed and len(found.weights) == 16 and all(each.same for each in found.weights)
    assert found.suspicion == ""


def test_quantised_weights_and_a_fault_on_top(root: Path, reference_dump: Path, tmp_path: Path) -> None:
    def change(model: Any) -> None:
        quantised(model)
        swapped(model)
    found = compare(reference_dump, recorded(root, tmp_path / "odd", change))
    assert not found.passed and sum(bool(each.rounded) for each in found.weights) == 14
    assert {each.name: each.found for each in found.weights if not each.rounded} == {GATE: UP, UP: GATE}
    assert "14 of 16 matrices are the reference's rounded to 16 levels in blocks of 32" in found.suspicion
    assert f"more than that noise: {GATE} is that of {UP}" in found.suspicion
    assert any("matrices that are not the reference's" in check.name and not check.passed for check in found.checks)
    assert overview(found)


def test_statistics_have_the_rows_too(root: Path, reference_dump: Path, tmp_path: Path) -> None:
    found = compare(reference_dump, recorded(root, tmp_path / "few", quantised, mode="statistics"))
    assert sum(each.rounded == "16 levels in blocks of 32" for each in found.weights) == 16


def test_weights_that_change_nothing_here_are_told_all_the_same(root: Path, reference_dump: Path, tmp_path: Path
                                                                ) -> None:
    """A change that is lost in the tolerances of values is none of the released weights."""
    def change(model: Any) -> None:
        weight = model.model.layers[0].mlp.down_proj.weight
        noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
        weight.copy_(weight + 0.01 * weight.std() * noise)
    found = compare(reference_dump, recorded(root, tmp_path / "odd", change))
    assert not found.passed and "model.layers.0.mlp.down_proj.weight is another" in found.suspicion


def test_what_ranks_hold_is_put_together(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    rows, size = (0, 3, 6, 9), 10

    def strip(at: list[int], columns: slice) -> Tensor:
        held = (Held(axis=0, size=size, ranges=tuple((rows[row], rows[row] + 1) for row in at)),
                *((Held(axis=1, size=32, ranges=((columns.start, columns.stop),)),) if columns.stop - columns.start < 32
                  else ()))
        return Tensor("m.weight", values[at][:, columns], what="parameter", kind="linear", held=held,
                      axes=("dim0", "channel"))
    out = Tensor("m", np.ones((3, 4), np.float32))
    by_rows = {rank: ({"tp": rank}, [Step(runs((0, 0, 3)), [strip(at, slice(0, 32)), out])])
               for rank, at in enumerate(([0, 1], [2, 3]))}
    halves = slice(0, 16), slice(16, 32)
    by_columns = {rank: ({"tp": rank}, [Step(runs((0, 0, 3)), [strip([0, 1, 2, 3], half), out])])
                  for rank, half in enumerate(halves)}
    whole = dumps.write(tmp_path / "one", [Step(runs((0, 0, 3)), [strip([0, 1, 2, 3], slice(0, 32)), out])])
    for name, ranks in (("rows", by_rows), ("columns", by_columns)):
        folder = dumps.write(tmp_path / name, ranks, Layout(tp=2))
        with open_dump(whole) as one, open_dump(folder) as many:
            assert np.array_equal(strips(many)["m.weight"][0], values)
            assert [each.same for each in matrices(one, many)] == [True]
