"""An engine that a package brings, started in a process of its own and recorded there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.inside_engine import installed

import dayzero
from dayzero.errors import StageError, UsageError
from dayzero.runtime.golden import open_dump
from dayzero.runtime.golden.logprobs import logprobs
from dayzero.schema import Layout
from dayzero.stages.check.compare import compare
from dayzero.stages.check.inside import Engine, record_inside
from dayzero.stages.check.recording import Asked
from dayzero.stages.read import read

TOKENS = ((5, 17, 3, 60, 2, 2, 41, 8, 33, 7, 19), (9, 4, 1))


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release, and beside it a dump of it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("inside")
    model: Any = LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2)).eval()
    model.save_pretrained(root / "release")
    with torch.no_grad(), dayzero.record(model, root / "reference"):
        for tokens in TOKENS:
            model(input_ids=torch.tensor([tokens]))
    return root / "release"


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is installed here and where the engine runs."""
    (tmp_path / "site").mkdir()
    site = installed(tmp_path / "site")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(site), str(root))))


def test_what_an_engine_computes_passes_against_the_release(release: Path, tmp_path: Path) -> None:
    made = record_inside(read(str(release)), TOKENS, tmp_path / "d", Asked(dtype="f32"), Engine(name="toy", top=3))
    assert (made.sequences, made.ranks) == (2, 1)
    with open_dump(tmp_path / "d") as dump, open_dump(release.with_name("reference")) as reference:
        assert dump.ranks[0].origin.engine == "toy 1.0" and dump.ranks[0].origin.digests
        ours, theirs = logprobs(dump, top=3), logprobs(reference, top=3)
    for number in (0, 1):
        np.testing.assert_allclose(ours[number].tokens, theirs[number].tokens, atol=1e-5)
        assert ours[number].top_ids.tolist() == theirs[number].top_ids.tolist()
    found = compare(release.with_name("reference"), tmp_path / "d")
    assert found.passed, [check for check in found.checks if not check.passed]
    assert {"model.layers.1.self_attn.k_proj output", "model.norm input hidden_states"} <= {
        place.name for place in found.places}
    assert any("logprob" in check.name for check in found.checks)


@pytest.mark.slow
def test_other_tokens_than_those_that_were_given_are_told(release: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="called with other tokens"):
        record_inside(read(str(release)), TOKENS, tmp_path / "d", Asked(), Engine(name="toy", options={"ahead": 1}))


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "kind", "said"), [
    (Engine(name="tory"), UsageError, "no engine 'tory'"),
    (Engine(name="toy", options={"what": 1}), UsageError, "has no option what"),
    (Engine(name="toy", options={"dies": True}), StageError, "toy ended with -6"),
    (Engine(name="toy", python="/nowhere/python"), UsageError, "/nowhere/python cannot be started")])
def test_what_does_not_start_says_why(engine: Engine, kind: type[Exception], said: str, release: Path, tmp_path: Path
                                      ) -> None:
    with pytest.raises(kind, match=said) as refused:
        record_inside(read(str(release)), TOKENS, tmp_path / "d", Asked(), engine)
    if isinstance(refused.value, StageError):
        assert "killed with 1 and 1" in refused.value.log
    else:
        assert not (tmp_path / "d").exists()


def test_what_only_a_run_by_dayzero_has_is_refused(release: Path, tmp_path: Path) -> None:
    for asked, name in ((Asked(layout=Layout(tp=2)), "layout"), (Asked(decode=2), "decode"), (Asked(noise=1), "noise")):
        with pytest.raises(UsageError, match=f"{name} is not asked of an engine"):
            record_inside(read(str(release)), TOKENS, tmp_path / "d", asked, Engine(name="toy"))
