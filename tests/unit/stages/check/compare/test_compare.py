"""Two dumps against each other: correct runs pass however they are cut, and what is wrong is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tests.support import dumps
from tests.support.dumps import Step, Tensor, runs, write
from typer.testing import CliRunner

from dayzero.cli import app
from dayzero.errors import StoreError, UsageError
from dayzero.schema import Column, Layout, from_json, to_json
from dayzero.schema.comparison import Comparison, NamePair
from dayzero.schema.golden import Held, Sample
from dayzero.stages.check.compare import compare, read_map, to_contract

LAYERS, WIDTH, LENGTHS = 3, 16, (9, 7)
ROWS = sum(LENGTHS)
ALL = runs(*((number, 0, length) for number, length in enumerate(LENGTHS)))
Values = dict[str, np.ndarray]


def _model(seed: int = 0) -> Values:
    rng = np.random.default_rng(seed)
    names = [f"model.layers.{layer}.{part}" for layer in range(LAYERS) for part in ("attn", "mlp")]
    return {name: rng.standard_normal((ROWS, WIDTH)) for name in (*names, "model.norm")} | {
        "": rng.standard_normal((ROWS, 40))}


def _noisy(values: Values, size: float, seed: int) -> Values:
    rng = np.random.default_rng(seed)
    return {name: value * (1 + size * rng.standard_normal(value.shape)) for name, value in values.items()}


def _tensors(values: Values, **changes) -> list[Tensor]:
    return [Tensor(name, value, what="output" if name else "logits", slot="0" if name else "logits", **changes)
            for name, value in values.items()]


def _one(folder: Path, values: Values, **changes) -> Path:
    return write(folder, [Step(ALL, _tensors(values, **changes))])


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    return _one(tmp_path / "a", _model())


def test_the_same_in_other_passes_ranks_and_padding_passes(reference: Path, tmp_path: Path) -> None:
    values = _model()
    steps = {rank: [] for rank in range(4)}
    for first, end in ((0, 4), (4, 9)):  # a prefill in two chunks, the shorter sequence padded to the left
        for rank in range(4):
            pp, tp = divmod(rank, 2)
            own = [name for name in values if (name.startswith("model.layers.0")) == (pp == 0)]
            rows = runs((0, first, end - first), (-1, 0, 2), (1, first, min(end, 7) - first))
            index = np.r_[first:end, 0:2, 9 + first : 9 + min(end, 7)]
            half = slice(tp * WIDTH // 2, (tp + 1) * WIDTH // 2)
            made = [Tensor(name, values[name][index][:, half],
                           held=(Held(axis=1, size=WIDTH, ranges=((half.start, half.stop),)),)) for name in own if name]
            made += [Tensor("", values[""][index], what="logits", slot="logits")] if pp else []
            steps[rank].append(Step(rows, made))
    ranks = {rank: ({"tp": rank % 2, "pp": rank // 2}, each) for rank, each in steps.items()}
    found = compare(reference, write(tmp_path / "b", ranks, Layout(tp=2, pp=2)))
    assert found.passed and all(place.relative_l2 == 0 for place in found.places)
    assert len(found.places) == 2 * LAYERS + 2 and all(place.rows == ROWS for place in found.places)
    assert found.logits[0].argmax == 1.0 and found.others == {"measured": True, "constant": True, "cosine": True}


@pytest.mark.parametrize(("what", "place"), [
    (lambda v: v["model.layers.1.attn"].__setitem__((slice(None), 3), 0.0), "model.layers.1.attn output"),
    (lambda v: v["model.layers.2.mlp"].__imul__(1.01), "model.layers.2.mlp output"),
    (lambda v: v["model.layers.0.mlp"].__setitem__(5, v["model.layers.0.mlp"][6]), "model.layers.0.mlp output"),
    (lambda v: v["model.layers.1.mlp"].__setitem__((2, 2), np.nan), "model.layers.1.mlp output")])
def test_the_first_place_that_differs_is_named(what, place: str, reference: Path, tmp_path: Path) -> None:
    noise = [_one(tmp_path / f"n{seed}", _noisy(_model(), 2e-3, seed), dtype="BF16") for seed in (1, 2)]
    right = compare(reference, _one(tmp_path / "b", _noisy(_model(), 2e-3, 3), dtype="BF16"), noise=noise)
    assert right.passed and right.first_divergence is None and not right.suspicion
    values = _noisy(_model(), 2e-3, 3)
    what(values)
    found = compare(reference, _one(tmp_path / "c", values, dtype="BF16"), noise=noise)
    assert not found.passed and found.first_divergence.place == place
    assert found.first_divergence.module == place.removesuffix(" output") and found.suspicion
    assert found.first_divergence.layer == int(place.split(".")[2])


def test_a_tolerance_is_of_the_place_and_says_where_it_comes_from(reference: Path, tmp_path: Path) -> None:
    deep = {name: 0.05 if ".2." in name else 1e-3 for name in _model()}
    noise, candidate = ({name: _noisy({name: value}, deep[name], seed)[name] for name, value in _model().items()}
                        for seed in (4, 5))
    found = compare(reference, _one(tmp_path / "b", candidate, dtype="BF16"),
                    noise=[_one(tmp_path / "n", noise, dtype="BF16")])
    by = {place.name: place for place in found.places}
    assert found.passed and not found.others["constant"]
    assert by["model.layers.2.mlp output"].tolerance > 0.1 > by["model.layers.1.mlp output"].tolerance >= 1e-2
    assert "noise of correct runs" in by["model.layers.2.mlp output"].source
    alone = compare(reference, _one(tmp_path / "c", _noisy(_model(), 1e-3, 6), dtype="BF16"))
    assert alone.passed and all("estimated" in place.source for place in alone.places)


def test_noise_of_another_precision_is_taken_in_proportion(reference: Path, tmp_path: Path) -> None:
    noise = [_one(tmp_path / "n", _noisy(_model(), 2e-3, 1), dtype="BF16")]
    wrong = _one(tmp_path / "b", _noisy(_model(), 1e-4, 2))
    assert compare(reference, wrong).passed is False  # in f32 that is no roundoff
    assert compare(reference, wrong, noise=noise).passed is False
    assert compare(reference, _one(tmp_path / "c", _noisy(_model(), 1e-7, 2)), noise=noise).passed


def test_ranks_that_disagree_are_named(reference: Path, tmp_path: Path) -> None:
    values, other = _model(), _model()
    other["model.layers.1.mlp"] = other["model.layers.1.mlp"] + 1
    ranks = {rank: ({"tp": rank}, [Step(ALL, _tensors(each))]) for rank, each in enumerate((values, other))}
    found = compare(reference, write(tmp_path / "b", ranks, Layout(tp=2)))
    failed = [check.name for check in found.checks if not check.passed]
    assert failed == ["model.layers.1.mlp output, ranks 0 and 1 disagree"]


def test_of_statistics_what_can_be_told(reference: Path, tmp_path: Path) -> None:
    right = compare(reference, _one(tmp_path / "b", _model(), statistics_only=True))
    assert right.passed and {place.kept for place in right.places} == {"statistics"}
    values = _model()
    values["model.layers.1.mlp"] *= 1.1
    found = compare(reference, _one(tmp_path / "c", values, statistics_only=True))
    assert found.first_divergence.place == "model.layers.1.mlp output"
    assert found.first_divergence.relative_l2 == pytest.approx(0.1, rel=1e-6)


def test_samples_meet_where_both_kept_values(reference: Path, tmp_path: Path) -> None:
    sample = Sample(rows=Column([0, 5, 11]), columns=Column([1, 2, 9]))
    values = _model()
    values["model.layers.1.mlp"][5, 9] += 1
    found = compare(reference, write(tmp_path / "b", [Step(ALL, _tensors(values, sample=sample))], mode="sampled"))
    assert found.first_divergence.place == "model.layers.1.mlp output"
    assert {(place.kept, place.rows) for place in found.places} == {("sampled", 3)}


def _routed(folder: Path, scores: np.ndarray, chosen: np.ndarray, after: np.ndarray, **changes) -> Path:
    own = {"kind": "router", "what": "router"}
    return write(folder, [Step(ALL, [
        Tensor("layers.0.gate", scores, slot="scores", **own),
        Tensor("layers.0.gate", chosen, slot="indices", dtype="I64", **own),
        Tensor("layers.0.mlp", after, dtype="BF16"),
        Tensor("layers.1.attn", after, what="input", kind="attention", dtype="BF16"),
        Tensor("layers.1.attn", after, kind="attention", dtype="BF16")])], **changes)


def test_what_follows_a_legitimate_flip_is_not_blamed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scores, after = rng.standard_normal((ROWS, 8)), rng.standard_normal((ROWS, WIDTH))
    chosen = np.argsort(-scores, axis=1)[:, :2]
    scores[3, chosen[3, 1]] = scores[3, np.argsort(-scores[3])[2]] + 1e-4  # a near tie
    chosen = np.argsort(-scores, axis=1)[:, :2]
    a = _routed(tmp_path / "a", scores, chosen, after)
    noise = _routed(tmp_path / "n", scores + 1e-3 * rng.standard_normal(scores.shape), chosen, after * 1.0005)
    moved, other = scores.copy(), after.copy()
    moved[3, chosen[3, 1]] -= 2e-4
    other[3] = rng.standard_normal(WIDTH)  # that row went through another expert
    found = compare(a, _routed(tmp_path / "b", moved, np.argsort(-moved, axis=1)[:, :2], other), noise=[noise])
    assert found.passed, [check for check in found.checks if not check.passed]
    assert (found.routers[0].flips, found.routers[0].legitimate) == (1, 1)
    by = {place.name: place for place in found.places}
    assert by["layers.0.mlp output"].flipped_rows == 1 and by["layers.0.mlp output"].flipped_l2 > 0.5
    assert by["layers.0.mlp output"].touched_rows == 0
    assert by["layers.1.attn output"].touched_rows == LENGTHS[0] - 4  # rows behind it in its sequence
    wrong = chosen.copy()
    wrong[7, 0] = np.argsort(-scores[7])[-1]  # an expert that the scores do not ask for
    found = compare(a, _routed(tmp_path / "c", scores, wrong, after), noise=[noise])
    assert not found.passed and found.first_divergence.module == "layers.0.gate"


def test_names_are_derived_shown_and_overridden(reference: Path, tmp_path: Path) -> None:
    values = {name.replace("model.", "engine.wrapped."): value for name, value in _model().items()}
    found = compare(reference, _one(tmp_path / "b", values))
    assert found.passed and any(pair.a != pair.b for pair in found.map) and not found.alone
    swapped = (NamePair(a=("model.layers.*.attn",), b=("engine.wrapped.layers.*.mlp",)),
               NamePair(a=("model.layers.*.mlp",), b=("engine.wrapped.layers.*.attn",)))
    assert not compare(reference, tmp_path / "b", names=swapped).passed


def test_what_cannot_be_compared_is_refused(reference: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "b", [Step(ALL, _tensors(_model()), tokens=np.arange(ROWS))])
    with pytest.raises(UsageError, match="other tokens: sequence 0 has"):
        compare(reference, other)
    with pytest.raises(StoreError, match="not finished"):
        compare(reference, write(tmp_path / "c", [Step(ALL, _tensors(_model()))], finish=False))
    assert compare(reference, tmp_path / "c", unfinished=True).passed
    with pytest.raises(UsageError, match="nothing that can be compared"):
        compare(reference, write(tmp_path / "d", [Step(ALL, [Tensor("x.y", np.ones((ROWS, 3)))])]))
    away = write(tmp_path / "e", [Step(runs((5, 0, ROWS)), _tensors(_model()))])
    with pytest.raises(UsageError, match="none of the sequences"):
        compare(reference, away)


def _last(a: Path, b: Path) -> str:
    return CliRunner().invoke(app, ["check", "compare", str(a), str(b)]).output.replace("\n", " ").strip()


def test_a_candidate_that_lacks_most_places_does_not_pass(reference: Path, tmp_path: Path) -> None:
    few = {name: value for name, value in _model().items() if ".0." in name or not name}
    found = compare(reference, _one(tmp_path / "b", few))
    assert not found.passed and (len(found.places), found.recorded) == (3, 8)
    assert [check.observed for check in found.checks if not check.passed] == [5 / 8]
    assert "3 of the reference's 8 places compared" in _last(reference, tmp_path / "b")
    other = compare(reference, _one(tmp_path / "c", few, module="Engine"))
    assert other.passed, "other code has other modules"
    most = {name: value for name, value in _model().items() if name != "model.norm"}
    assert compare(reference, _one(tmp_path / "d", most)).passed
    only = compare(reference, _one(tmp_path / "e", few, statistics_only=True))
    assert not only.passed, "what was not recorded has no statistics either"


def test_a_dump_of_nothing_is_said_to_be_one(reference: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="b holds no tensors: the model was not called"):
        compare(reference, write(tmp_path / "b", []))


def test_noise_that_is_out_of_proportion_is_told(tmp_path: Path) -> None:
    base = _model()
    a = _one(tmp_path / "a", base)
    fine = [_one(tmp_path / f"f{seed}", _noisy(base, 2e-3, seed)) for seed in (1, 2)]
    wrong = {name: value if ".0." in name else np.roll(value, 1, axis=-1) for name, value in base.items()}
    bad, good = _one(tmp_path / "bad", wrong, dtype="BF16"), _one(tmp_path / "ok", _noisy(base, 4e-3, 3), dtype="BF16")
    found = compare(a, bad, noise=[*fine, bad])
    assert found.passed, "its own noise lets it pass"
    assert [note for note in found.told if note.startswith(str(bad)) and "same likeliest token in" in note]
    assert not [note for note in compare(a, good, noise=[*fine, good]).told if "likeliest" in note]


@pytest.mark.parametrize("columns", ["80", "120"])
def test_names_are_shown_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    name = "model.language_model.layers.0.self_attention.kv_a_proj_with_mqa"
    values = {name: np.ones((ROWS, WIDTH)), "": np.ones((ROWS, 40))}
    told = _last(_one(tmp_path / "a", values), _one(tmp_path / "b", values | {name: np.zeros((ROWS, WIDTH))}))
    assert f"OUT {name} output" in told


def test_digests_are_checked_when_asked(reference: Path, tmp_path: Path) -> None:
    folder = _one(tmp_path / "b", _model())
    part = next(folder.glob("*.safetensors"))
    data = bytearray(part.read_bytes())
    data[-2] ^= 1  # a low bit of one value
    part.write_bytes(data)
    assert "digests of all" in " ".join(compare(reference, reference, verify=True).told)
    with pytest.raises(StoreError, match="its digest differs"):
        compare(reference, folder, verify=True)


def test_pipes_are_refused_and_not_waited_for(reference: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        read_map(tmp_path / "pipe")
    manifest = next(reference.glob("*.json"))
    manifest.unlink()
    os.mkfifo(manifest)
    with pytest.raises(StoreError, match="not a regular file"):
        compare(reference, reference)


def test_the_report_reads_again_and_is_a_map(reference: Path, tmp_path: Path) -> None:
    found = compare(reference, reference)
    assert from_json(to_json(found), Comparison) == found
    told = to_contract(found)
    assert told["passed"] and told["first_divergence"] is told["pattern"] is told["suspicion"] is None
    assert {"name", "tolerance", "source", "observed", "passed"} <= told["checks"][0].keys()


def test_the_command(reference: Path, tmp_path: Path) -> None:
    values = _model()
    values["model.layers.1.mlp"] *= 1.005
    other, out, run = _one(tmp_path / "b", values), tmp_path / "r.json", CliRunner().invoke
    done = run(app, ["check", "compare", str(reference), str(other), "--json", "--out", str(out)])
    assert done.exit_code == 1, done.output
    assert json.loads(out.read_text())["first_divergence"]["module"] == "model.layers.1.mlp"
    again = ["check", "compare", str(reference), str(other), "--map", str(out)]
    assert run(app, again).exit_code == 1
    assert run(app, [*again, "--judge", "cosine"]).exit_code == 0
    assert run(app, [*again, "--judge", "constant"]).exit_code == 0
    assert isinstance(run(app, [*again, "--judge", "cosin"]).exception, UsageError)
    assert isinstance(run(app, ["check", "compare", str(reference), str(tmp_path)]).exception, StoreError)
    inside = run(app, ["check", "compare", str(reference), str(other), "--out", str(other / "x.json")])
    assert isinstance(inside.exception, UsageError)


def test_dumps_are_written_as_asked() -> None:
    assert dumps.stored(np.array([1.0, -2.5]), "BF16") == bytes.fromhex("803f20c0")


def test_logprobs_of_a_server_against_logits(tmp_path: Path) -> None:
    logits = np.random.default_rng(3).standard_normal((12, 50)) * 3
    rows = runs((0, 0, 12))
    wide = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    tokens = (np.arange(12) * 7) % 97 % 50
    given = wide[np.arange(11), tokens[1:]]

    def server(folder: Path, told: np.ndarray) -> Path:
        return write(folder, [Step(rows, [Tensor("", told, what="logprobs", slot="token", dtype="F64", axes=("token",),
                                                 rows=runs((0, 1, 11)))], tokens=tokens)], dtype="F64")

    a = write(tmp_path / "r", [Step(rows, [Tensor("", logits, what="logits", slot="logits")], tokens=tokens)])
    noise = server(tmp_path / "n", given + 0.01)
    assert compare(a, server(tmp_path / "b", given + 0.02), noise=[noise]).passed
    found = compare(a, server(tmp_path / "c", given - 2.2 * (np.arange(11) > 0)), noise=[noise])
    assert not found.passed and found.first_divergence.place == "logprob of position 2 of sequence 0"
    assert "from position 2 on" in found.suspicion and "rotary" in found.suspicion
