"""Gradients of real ranks against one process: the same in every layout, and a bucket that is stale is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import tiny
from tests.support.forked import forked

from dayzero.errors import NotPossible
from dayzero.runtime.assignment import Assignment
from dayzero.runtime.derivatives.rank import Descent, work
from dayzero.runtime.dumps import Sketches
from dayzero.schema import Check
from dayzero.schema.derivatives import Derivatives
from dayzero.stages.check.derivatives import ALONE, Way, _finite, _same_way, _Trained

STEPS = 3
STALE = "model.layers.1.self_attn.o_proj.weight"


def trained(root: Path, folder: Path, text: str = "", rate: float = 0.0) -> _Trained:
    way = Way.parse(text) if text else ALONE
    prompts = tuple(tuple(range(start, start + 12)) for start in (3, 40, 90, 150))
    assignment = Assignment(
        root=str(root), layout=way.layout, passes=(), prompts=prompts, max_new_tokens=1, batch=1, seed=0,
        gradient_rows=4, derivatives=Derivatives(steps=STEPS, samples=0, rate=rate, fsdp=way.fsdp))
    seen = [each.derived for each in forked(
        way.layout, lambda mesh: work(assignment, mesh, folder, lambda text: None))]
    return _Trained(next((each for each in seen if each.losses), seen[0]),
                    {name: count for each in seen for name, count in each.odd.items()}, Sketches(folder).values)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: Any) -> Path:
    return tiny.dense(tmp_path_factory.mktemp("tied") / "model", tie_word_embeddings=True)


@pytest.fixture(scope="module")
def truth(tied: Path, tmp_path_factory: Any) -> _Trained:
    return trained(tied, tmp_path_factory.mktemp("alone"))


def wrong(root: Path, folder: Path, text: str, truth: _Trained) -> list[Check]:
    way, found = Way.parse(text), trained(root, folder, text, truth.derived.rate)
    checks = [*_finite(way, found), *_same_way(way, found, truth)]
    assert len(checks) == 3
    return [check for check in checks if not check.passed]


@pytest.mark.parametrize("text", ["tp=2", "dp=2", "dp=2,fsdp"])
def test_every_layout_goes_the_same_way(tied: Path, tmp_path: Path, truth: _Trained, text: str) -> None:
    assert wrong(tied, tmp_path, text, truth) == []


@pytest.mark.parametrize("text", ["dp=2", "dp=2,fsdp"])
def test_a_bucket_of_the_step_before_is_named(tied: Path, tmp_path: Path, truth: _Trained, text: str,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    right, kept = Descent.gradients, dict[str, torch.Tensor]()

    def stale(self: Descent) -> Any:
        value, found = right(self)
        if self.mesh.place.replica == 1:
            found[STALE], kept["before"] = kept.get("before", found[STALE]), found[STALE].clone()
        return value, found
    monkeypatch.setattr(Descent, "gradients", stale)
    [check] = [each for each in wrong(tied, tmp_path, text, truth) if "gradients" in each.name]
    assert STALE in check.detail and f"step 2 of {STEPS}" in check.detail
    assert ("replica 1" in check.detail) == (text == "dp=2")


def test_what_is_no_number_is_named_and_nothing_is_trained(tied: Path, tmp_path: Path, truth: _Trained,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    right = Descent.gradients

    def odd(self: Descent) -> Any:
        value, found = right(self)
        if self.mesh.place.rank == 1:
            found[STALE][0, 0] = float("nan")
        return value, found
    monkeypatch.setattr(Descent, "gradients", odd)
    found = trained(tied, tmp_path, "tp=2", truth.derived.rate)
    [check] = _finite(Way.parse("tp=2"), found)
    assert not check.passed and STALE in check.detail and found.derived.losses == ()
    assert list(_same_way(Way.parse("tp=2"), found, truth)) == []


def test_layouts_that_cannot_share_weights(tied: Path, tmp_path: Path) -> None:
    with pytest.raises(NotPossible, match="shared by replicas only"):
        trained(tied, tmp_path, "tp=2,dp=2,fsdp")
