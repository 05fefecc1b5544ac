"""Tensors of other code under the reference's slots."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.dumps import Step, Tensor, runs, write

from dayzero.stages.check.compare import compare

ROWS, WIDTH = runs((0, 0, 9)), 6
DRAW = np.random.default_rng(5)
X, ADDED, ROUTED, SHARED = (DRAW.standard_normal((9, WIDTH)).astype(np.float32) for _ in range(4))
SCORES = DRAW.standard_normal((9, 4)).astype(np.float32)


def tensors(layer: int, *, theirs: bool, sign: float = 1.0) -> list[Tensor]:
    """A layer that gives X + ADDED, its block of experts routed and shared. `sign`: of the addend, in the engine."""
    name = f"layers.{layer}"
    if theirs:
        return [Tensor(f"{name}.norm", X + ADDED, "input", "hidden_states"), Tensor(f"{name}.norm", 2 * X + ADDED),
                Tensor(f"{name}.mlp.gate", SCORES, "router", "scores", kind="router"),
                Tensor(f"{name}.mlp.experts", ROUTED), Tensor(f"{name}.mlp", ROUTED + SHARED),
                Tensor(name, X + ADDED)]
    total = X + sign * ADDED
    return [Tensor(f"{name}.norm", sign * ADDED, "input", "0"), Tensor(f"{name}.norm", X, "input", "1"),
            Tensor(f"{name}.norm", 2 * X + ADDED), Tensor(f"{name}.norm", total, "output", "1"),
            Tensor(f"{name}.mlp.gate", SCORES), Tensor(f"{name}.mlp.experts", ROUTED + SHARED),
            Tensor(f"{name}.mlp", ROUTED + SHARED), Tensor(name, sign * ADDED), Tensor(name, X, "output", "1")]


def dumps(folder: Path, **options: float) -> tuple[Path, Path]:
    return tuple(write(folder / name, [Step(ROWS, [each for layer in (0, 1) for each in tensors(  # type: ignore
        layer, theirs=theirs, **({} if theirs else options))])]) for name, theirs in (("a", True), ("b", False)))


def test_terms_are_added_and_blocks_that_hold_more_are_compared_around(tmp_path: Path) -> None:
    found = compare(*dumps(tmp_path))
    assert found.passed, [check.name for check in found.checks if not check.passed]
    names = {place.name for place in found.places}
    assert {"layers.1 output", "layers.1.norm input hidden_states", "layers.1.mlp output",
            "layers.1.mlp.gate router scores"} <= names
    assert "layers.1.mlp.experts output" not in names
    assert sum("together are compared" in note for note in found.told) == 2
    assert any("only a part" in note for note in found.told)


@pytest.mark.parametrize("sign", [-1.0, 0.5])
def test_an_addend_that_is_wrong_is_not_explained_away(sign: float, tmp_path: Path) -> None:
    found = compare(*dumps(tmp_path, sign=sign))
    failed = {check.name for check in found.checks if not check.passed}
    assert any("layers.0 output" in name for name in failed) and any("layers.0.norm input" in name for name in failed)
