"""The reference with a run's values in place: an error shows where it is made and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import tiny

from dayzero.errors import NotPossible, ReleaseError, UsageError
from dayzero.runtime.substitution import Heard, Inputs, Layers, Perturbation, Runner, runner
from dayzero.runtime.substitution.places import Held, Place
from dayzero.runtime.substitution.reference import reference
from dayzero.runtime.substitution.rows import instead, perturbed, rows_of, token_axis
from dayzero.runtime.substitution.settings import checked
from dayzero.runtime.substitution.slots import changed

TOKENS = {0: np.arange(30, 54), 1: np.arange(200, 217)}
ATTENTION, OUT = "model.layers.1.self_attn", "model.layers.1.self_attn.o_proj"


@pytest.fixture(scope="module")
def dense(tmp_path_factory: Any) -> Any:
    return tiny.dense(tmp_path_factory.mktemp("dense") / "model")


@pytest.fixture(scope="module")
def experts(tmp_path_factory: Any) -> Any:
    return tiny.experts(tmp_path_factory.mktemp("experts") / "model")


def heard(root: Any, fault: Callable[[Any], None] = lambda model: None) -> Heard:
    with reference(root) as made, torch.no_grad():
        fault(made.watched)
        return Heard(made, Inputs("", {}, TOKENS, "f32"))


def errors(run: Runner, recorded: Heard) -> dict[Place, float]:
    """Relative L2 of each place of the first sequence."""
    made = run.run(recorded, 0)
    found = {}
    for place, value in made.values.items():
        held: Any = recorded.held(place, 0)
        x, r = held.values.astype(np.float64).ravel(), value.double().numpy().ravel()
        found[place] = float(np.linalg.norm(x - r) / np.linalg.norm(r)) if np.linalg.norm(r) else 0.0
    return found


def test_a_run_of_the_same_is_the_same_everywhere(dense: Any) -> None:
    with runner(dense, "f32") as run:
        found = errors(run, heard(dense))
    assert len(found) > 60 and max(found.values()) < 1e-6
    assert {place.what for place in found} == {"input", "output", "logits"}


def test_what_follows_an_error_is_not_blamed(dense: Any) -> None:
    """All later activations of this run differ; only the place where a weight is wrong has an error of its own."""
    def fault(model: Any) -> None:
        weight = model.model.layers[1].mlp.up_proj.weight
        weight.copy_(weight.flip(0))
    recorded, right = heard(dense, fault), heard(dense)
    last = Place("model.layers.3", "output", "0")
    assert np.abs(recorded.held(last, 0).values - right.held(last, 0).values).max() > 0.01  # type: ignore[union-attr]
    with runner(dense, "f32") as run:
        found = errors(run, recorded)
    assert [place for place, error in found.items() if error > 1e-4] == [Place("model.layers.1.mlp.up_proj", "output",
                                                                               "0")]


def test_code_between_children_is_seen_at_the_next_ones_input(dense: Any) -> None:
    def fault(model: Any) -> None:
        model.model.layers[1].self_attn.scaling *= 2
    with runner(dense, "f32") as run:
        recorded = heard(dense, fault)
        made = run.run(recorded, 0)
        found = errors(run, recorded)
    wrong = [place for place, error in found.items() if error > 1e-4]
    assert wrong == [Place(OUT, "input", "input")]
    assert made.by[wrong[0]].name == ATTENTION


def test_a_router_and_its_experts_are_apart(experts: Any) -> None:
    def fault(model: Any) -> None:
        model.model.layers[2].mlp.gate.norm_topk_prob = not model.model.layers[2].mlp.gate.norm_topk_prob
    with runner(experts, "f32") as run:
        found = errors(run, heard(experts, fault))
    wrong = {(place.name, place.slot) for place, error in found.items() if error > 1e-4}
    assert wrong == {("model.layers.2.mlp.gate", "weights")}


def test_a_module_runs_again_alone_and_with_something_changed(dense: Any) -> None:
    from dayzero.runtime.substitution import Hypothesis
    from dayzero.runtime.substitution.trial import setting

    recorded = heard(dense)
    place = Place(OUT, "input", "input")
    with runner(dense, "f32") as run:
        computed = {sequence: run.run(recorded, sequence) for sequence in TOKENS}
        trial: Any = run.trial(recorded, computed, place)
        plain = trial.values()
        assert [len(each) for each in plain] == [24, 17]
        assert torch.allclose(plain[0], computed[0].values[place], atol=1e-6)
        attention = run.modules[ATTENTION]
        other = trial.values(Hypothesis("", "", lambda: setting(attention, "scaling", 1.0)))
        assert not torch.allclose(other[0], plain[0], atol=1e-3)
        assert attention.scaling == 0.25  # 16 channels
        assert trial.values(Hypothesis("", "", lambda: setting(attention, "head_dim", 5))) is None


def test_perturbed_values_move_by_a_roundoff(dense: Any) -> None:
    recorded = heard(dense)
    with runner(dense, "f32") as run:
        plain = run.run(recorded, 0)
        moved = run.run(recorded, 0, perturbation=Perturbation(2**-8, 1))
    place = Place("model.layers.0.self_attn.q_proj", "output", "0")
    apart = (moved.values[place] - plain.values[place]).norm() / plain.values[place].norm()
    assert 2**-11 < float(apart) < 2**-7


def test_a_layer_alone_reads_its_own_bytes_and_computes_the_same(experts: Any) -> None:
    layers = Layers(experts)
    assert layers.kinds == {0: (0, 1, 2, 3)} and layers.names[2] == "model.layers.2"
    recorded = heard(experts)
    whole: Any = sum(path.stat().st_size for path in experts.glob("*.safetensors"))
    with layers.layer(2) as truth:
        found = errors(Runner(truth, None), recorded)
        assert truth.read < whole / 4
    inside = {place: error for place, error in found.items() if place != Place("model.layers.2", "input",
                                                                               "hidden_states")}
    assert all(place.name.startswith("model.layers.2") for place in inside) and len(inside) > 15
    tables = {place: error for place, error in inside.items() if "position" not in place.slot}
    assert max(tables.values()) < 1e-6


def test_layers_of_other_kinds_are_told_apart(tmp_path: Any) -> None:
    made = tiny.experts(tmp_path / "model", mlp_only_layers=[0, 3])
    assert Layers(made).kinds == {0: (0, 3), 1: (1, 2)}


def test_a_release_without_a_weight_is_refused(dense: Any, tmp_path: Any) -> None:
    import json
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(dense, broken)
    index = json.loads((broken / "model.safetensors.index.json").read_text())
    gone = index["weight_map"]["model.layers.3.mlp.down_proj.weight"]
    (broken / gone).unlink()
    with pytest.raises(ReleaseError), reference(broken):
        pass
    with pytest.raises(NotPossible), reference(tmp_path):
        pass


@pytest.mark.parametrize(("shape", "length", "axis"), [
    ((7, 64), 7, 0), ((1, 7, 64), 7, 1), ((1, 4, 7, 16), 7, 2), ((1, 1, 7, 7), 7, None), ((1, 64), 7, None),
    ((1, 96, 7), 7, 2), ((7,), 7, 0), ((), 7, None), ((1, 1, 64), 1, 1), ((1, 7, 7), 7, 1),
])  # fmt: skip
def test_the_axis_of_tokens(shape: tuple[int, ...], length: int, axis: int | None) -> None:
    assert token_axis(shape, length) == axis


def test_rows_are_the_rows_of_recordings() -> None:
    """What is told here of one sequence is what a recording stores of it."""
    from dayzero.runtime.recording.values import by_rows, local

    for shape in ((7, 64), (1, 7, 64), (1, 4, 7, 16), (1, 96, 7), (1, 7, 4, 16)):
        tensor = torch.arange(int(np.prod(shape))).reshape(shape).float()
        stored, axes, _ = by_rows(local(tensor), 1, 7)
        rows: Any = rows_of(tensor, 7)
        assert axes[0] == "token" and torch.equal(stored.value, rows)
        held = Held(rows.numpy(), np.ones(7, dtype=bool))
        again = instead(torch.zeros(shape), rows, held)
        assert again is not None and torch.equal(again, tensor)


def test_rows_that_are_not_known_stay() -> None:
    tensor = torch.zeros(1, 3, 2)
    held = Held(np.ones((3, 2), dtype=np.float32), np.array([True, False, True]))
    rows: Any = rows_of(tensor, 3)
    made: Any = instead(tensor, rows, held)
    assert made[0, :, 0].tolist() == [1, 0, 1]
    assert instead(tensor, rows, Held(np.ones((3, 5), dtype=np.float32), np.ones(3, dtype=bool))) is None


def test_what_a_model_does_in_place_does_not_reach_what_was_recorded() -> None:
    held = Held(np.ones((3, 2), dtype=np.float32), np.ones(3, dtype=bool))
    made: Any = instead(torch.zeros(1, 3, 2), torch.zeros(3, 2), held)
    made += 1
    assert held.values.max() == 1


def test_tensors_are_replaced_wherever_they_are() -> None:
    given = {"a": torch.zeros(2), "b": (1, [torch.zeros(3)], None)}
    assert changed(given, lambda slot, tensor: tensor) is given
    made = changed(given, lambda slot, tensor: tensor + 1 if slot == "b.1.0" else tensor)
    assert made["a"] is given["a"] and made["b"][1][0].tolist() == [1, 1, 1] and made["b"][0] == 1
    whole = torch.tensor([1, 2])
    assert perturbed(whole, 0.1, torch.Generator()) is whole


@pytest.mark.parametrize(("name", "value"), [("atention", "sdpa"), ("batch", "0"), ("batch", "two"), ("dtype", "f8"),
                                             ("chunk", "")])
def test_settings_that_there_are_not(name: str, value: str) -> None:
    with pytest.raises(UsageError):
        checked(name, value)
