"""What can be asked for, and what a release states about sampling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import tiny

from dayzero.errors import ReleaseError, UsageError
from dayzero.schema import ModelSpec, Sampling
from dayzero.stages.run.wanted import Wanted


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    folder: Path = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps({"model_type": "a", "architectures": ["A"], **tiny.DENSE}))
    return tiny.release(folder).model


@pytest.mark.parametrize(("wanted", "word"), [
    (Wanted(max_new_tokens=0), "not a number of tokens: 0"), (Wanted(sampling=Sampling(-0.1)), "no temperature"),
    (Wanted(sampling=Sampling(float("nan"))), "no temperature"), (Wanted(sampling=Sampling(1.0, -1)), "top_k is -1"),
    (Wanted(sampling=Sampling(1.0, top_p=0.0)), "top_p is 0"), (Wanted(sampling=Sampling(top_k=5)), "say nothing"),
    (Wanted(samples=2), "all the same"), (Wanted(samples=0), "0 samples"), (Wanted(stop=("a", "")), "empty text"),
    (Wanted(stop_tokens=(300,)), "0 to 299"), (Wanted(sampling=Sampling(seed=-1)), "seed is out of range"),
    (Wanted(samples=2, sampling=Sampling(1.0, seed=2**63 - 1)), "seed is out of range"),
    (Wanted(released=True, sampling=Sampling(1.0)), "say two things"),
])
def test_what_cannot_be_is_refused(wanted: Wanted, word: str, model: ModelSpec) -> None:
    with pytest.raises(UsageError, match=word):
        wanted.checked(model)


@pytest.mark.parametrize(("wanted", "option"), [
    (Wanted(max_new_tokens=0), "--max-new-tokens"), (Wanted(samples=0), "--samples"),
    (Wanted(sampling=Sampling(-1.0)), "--temperature"), (Wanted(sampling=Sampling(1.0, -1)), "--top-k"),
    (Wanted(sampling=Sampling(1.0, 0, 2.0)), "--top-p"), (Wanted(samples=2), "--temperature"),
])
def test_a_hint_names_what_to_change(wanted: Wanted, option: str, model: ModelSpec) -> None:
    with pytest.raises(UsageError) as caught:
        wanted.checked(model)
    assert caught.value.hint.startswith(f"give {option} of ")


def test_samples_have_seeds_of_their_own(model: ModelSpec) -> None:
    wanted = Wanted(samples=3, sampling=Sampling(0.5, 7, 0.9, 40)).checked(model)
    assert [wanted.of_sample(number) for number in range(3)] == [Sampling(0.5, 7, 0.9, seed) for seed in (40, 41, 42)]


@pytest.mark.parametrize(("stated", "sampling"), [
    ({"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}, Sampling(0.6, 20, 0.95, 4)),
    ({"do_sample": True, "temperature": None, "top_k": None}, Sampling(1.0, 0, 1.0, 4)),
    ({"do_sample": False, "temperature": 0.6}, Sampling(seed=4)), ({}, Sampling(seed=4)),
])
def test_a_release_states_how(stated: dict[str, Any], sampling: Sampling) -> None:
    wanted = Wanted(released=True, sampling=Sampling(seed=4))
    assert wanted.resolved(stated).sampling == sampling
    assert Wanted().resolved(stated).sampling == Sampling()


@pytest.mark.parametrize("stated", [{"temperature": "hot"}, {"top_k": True}, {"top_p": 2.0}, {"temperature": -1}])
def test_a_release_may_state_nonsense(stated: dict[str, Any]) -> None:
    with pytest.raises(ReleaseError, match="the release's sampling"):
        Wanted(released=True).resolved({"do_sample": True, **stated})
