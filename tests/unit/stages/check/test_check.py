"""Verdicts on dumps made by hand: what passes, what does not, and where it is said to begin."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.support import tiny
from tests.unit.stages.run.test_record import _pass

from dayzero.errors import NotPossible, StoreError, UsageError
from dayzero.runtime.assignment import Assignment, Generated, RankResult
from dayzero.runtime.dumps import Dump, Sketches
from dayzero.runtime.kept import kept
from dayzero.schema import Check, Layout, LayoutRun, Output, RunRecord, Verdict, from_json, to_json
from dayzero.stages.check import check
from dayzero.stages.check.gradients import check_gradients
from dayzero.stages.check.layers import comparisons, first_divergence
from dayzero.stages.check.measure import FAR, Distance
from dayzero.stages.check.outputs import (
    check_agreement,
    check_kept,
    check_logits,
    check_repeat,
    check_tokens,
    not_made,
)
from dayzero.stages.check.reference import Reference
from dayzero.stages.read import read

PLACES = ("embedding", "layers.0", "layers.1", "layers.10", "norm", "logits")


def _dump(folder: Path, dtype: str, **errors: float) -> Path:
    """Two prompts of ones; `errors` adds to a place, whose dots are written as underscores."""
    folder.mkdir(exist_ok=True)
    tensors = {f"{prompt}/{place}": np.full((3, 4), 1 + errors.get(place.replace(".", "_"), 0.0), np.float32)
               for prompt in (0, 1) for place in PLACES}
    save_file(tensors, folder / f"{dtype}-rank-0.safetensors")
    return folder


def _sketches(folder: Path, **values: float) -> Sketches:
    folder.mkdir(exist_ok=True)
    save_file({name: np.full(4, value, np.float32) for name, value in values.items()},
              folder / "gradients-rank-0.safetensors", metadata={"rows": "2", "length": "3"})
    return Sketches(folder)


def _run(dump: str, *, layout: Layout | None = None, tokens: tuple[int, ...] = (1, 2, 3), identical: bool = True):
    return LayoutRun(layout=layout or Layout(pp=2), world_size=2, dtype="bf16", seed=0, ranks=(), ttft_s=1.0,
                     tpot_s=1.0, outputs=(Output(prompt="p", tokens=tokens, text="", finish="length"),), tpot_all_s=(),
                     tokens_per_s=1.0, repeat_identical=identical, dump=dump)


@pytest.fixture
def truth(tmp_path: Path) -> Reference:
    folder = _dump(tmp_path / "truth", "f32")
    own = dict.fromkeys(PLACES, Distance(relative_l2=0.01, max_abs=0.1, cosine=1.0, largest=2.0))
    generated = Generated(prompt=0, tokens=(1, 2, 3), margins=(5.0, 0.3, 5.0), finish="length")
    return Reference(dump=Dump(folder, "f32"), generated={0: generated}, sketches=_sketches(folder, a=1.0, b=2.0),
                     dtype="bf16", coarse="bf16", own=own, margin_error=0.2, forward_sum=400, backward_sum=900)


def test_tolerances_by_hand(truth: Reference) -> None:
    assert truth.tolerance("logits") == 0.02
    truth.own["embedding"] = Distance(relative_l2=0.0, max_abs=0.0, cosine=1.0, largest=1.0)
    assert truth.tolerance("embedding") == 2**-8
    # bf16 is off by 0.01, which is 2.56 of its roundoffs 2^-8, and by nothing in the embedding.
    assert truth.exact("layers.0") == pytest.approx(2**-24 * 20 * 2.56)
    assert truth.exact("embedding") == pytest.approx(2**-24 * 20)
    assert truth.backward == pytest.approx(2 * 2**-24 * 30 * 2.56)
    # The largest logit is 2.
    assert truth.margin_tolerance == pytest.approx(2 * (0.2 + 2 * 2**-24 * 20 * 2.56))


def test_a_run_within_tolerance(tmp_path: Path, truth: Reference) -> None:
    _dump(tmp_path / "run", "bf16", layers_1=0.015)
    [(errors, _)] = comparisons(_run("run"), tmp_path, truth)
    assert [error.place for error in errors] == list(PLACES)
    assert [round(error.relative_l2, 6) for error in errors] == [0.0, 0.0, 0.015, 0.0, 0.0, 0.0]
    assert first_divergence(errors) is None


def test_the_first_place_out_of_tolerance_is_named(tmp_path: Path, truth: Reference) -> None:
    _dump(tmp_path / "run", "bf16", layers_1=0.015, layers_10=0.5, logits=0.9)
    [(errors, _)] = comparisons(_run("run"), tmp_path, truth)
    found = first_divergence(errors)
    assert found is not None and (found.place, found.layer, found.layout) == ("layers.10", 10, "pp=2")
    assert found.relative_l2 == pytest.approx(0.5) and found.before == pytest.approx(0.015)


def test_in_f32_a_small_error_is_seen_where_the_own_dtype_hides_it(tmp_path: Path, truth: Reference) -> None:
    _dump(tmp_path / "run", "bf16", layers_10=0.004)
    _dump(tmp_path / "run", "f32", layers_10=0.004)
    (exact, source), (own, _) = comparisons(_run("run"), tmp_path, truth)
    found = first_divergence(exact)
    assert found is not None and (found.place, found.layout) == ("layers.10", "pp=2 in f32")
    assert "2^-24 times sqrt(400)" in source and first_divergence(own) is None


def test_a_place_that_was_not_dumped_is_not_passed_over(tmp_path: Path, truth: Reference) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    save_file({"0/embedding": np.ones((3, 4), np.float32)}, folder / "bf16-rank-0.safetensors")
    with pytest.raises(StoreError, match="no embedding of prompt 1"):
        comparisons(_run("run"), tmp_path, truth)


@pytest.mark.parametrize(("tokens", "passed", "observed"), [
    ((1, 2, 3), True, 0.0),
    ((1, 9, 9), True, 0.3),   # the reference had token 2 by 0.3 only; 0.4 is allowed
    ((9, 2, 3), False, 5.0),  # a clear decision
    ((1, 2), False, FAR),     # ends early with the same tokens
    ((), False, FAR),         # nothing was generated
])
def test_tokens(truth: Reference, tokens: tuple[int, ...], passed: bool, observed: float) -> None:
    (found,) = check_tokens(_run("run", tokens=tokens), truth)
    assert (found.passed, found.observed) == (passed, observed) and found.tolerance == truth.margin_tolerance


def test_repetition() -> None:
    assert check_repeat(_run("run")).passed and not check_repeat(_run("run", identical=False)).passed


def test_ranks_of_a_group_have_to_agree(tmp_path: Path) -> None:
    layout, digests = Layout(tp=2, dp=2), ("a", "a", "b", "c")
    for rank, digest in enumerate(digests):
        (tmp_path / "x" / f"rank-{rank}").mkdir(parents=True)
        _write(tmp_path / "x" / f"rank-{rank}" / "result.json", rank, digest)
    (found,) = check_agreement(SimpleNamespace(layout=layout, world_size=4, dump="x/dump"), tmp_path)
    assert not found.passed and found.observed == 1.0
    _write(tmp_path / "x" / "rank-3" / "result.json", 3, "b")
    (found,) = check_agreement(SimpleNamespace(layout=layout, world_size=4, dump="x/dump"), tmp_path)
    assert found.passed
    assert check_agreement(_run("x/dump"), tmp_path) == []


def _write(path: Path, rank: int, digest: str) -> None:
    passes = (_pass(0, steps=(), dump_digest=digest),)
    path.write_bytes(to_json(RankResult(rank=rank, device="cpu", passes=passes)))


def test_gradients(tmp_path: Path, truth: Reference) -> None:
    _sketches(tmp_path / "run", a=1.0, b=2.0 * (1 + 1e-6))
    (found,) = check_gradients(_run("run"), tmp_path, truth)
    assert found.passed and found.detail.startswith("b;") and found.tolerance == truth.backward
    _sketches(tmp_path / "run", a=1.001, b=2.0)
    (found,) = check_gradients(_run("run"), tmp_path, truth)
    assert not found.passed and found.observed == pytest.approx(0.001, rel=1e-3) and found.detail.startswith("a;")


def test_a_gradient_that_is_missing_fails(tmp_path: Path, truth: Reference) -> None:
    _sketches(tmp_path / "run", a=1.0)
    (found,) = check_gradients(_run("run"), tmp_path, truth)
    assert not found.passed and found.detail.startswith("b;")


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_gradients_that_are_no_numbers_fail_with_a_name_and_fit_into_json(
        tmp_path: Path, truth: Reference, odd: float) -> None:
    _sketches(tmp_path / "run", a=1.0, b=odd)
    (found,) = check_gradients(_run("run"), tmp_path, truth)
    assert not found.passed and found.detail.startswith("b;") and from_json(to_json(found), Check) == found
    nothing = dataclasses.replace(truth, sketches=_sketches(tmp_path / "odd", a=odd, b=odd))
    (found,) = check_gradients(_run("run"), tmp_path, nothing)
    assert not found.passed and from_json(to_json(found), Check) == found


def test_a_gradient_of_another_length(tmp_path: Path, truth: Reference) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    save_file({"a": np.ones(3, np.float32), "b": np.ones(4, np.float32)}, folder / "gradients-rank-0.safetensors",
              metadata={"rows": "2"})
    with pytest.raises(StoreError, match=r"gradient of a was dumped in shape \[3\]"):
        check_gradients(_run("run"), tmp_path, truth)


def test_no_numbers_in_the_reference_pass_nothing(tmp_path: Path, truth: Reference) -> None:
    """Neither a coarse pass that overflows nor logits that are no numbers widen a tolerance."""
    truth.own["layers.1"] = Distance(relative_l2=FAR, max_abs=FAR, cosine=0.0, largest=FAR)
    assert truth.tolerance("layers.1") == 2**-8 and truth.exact("layers.1") == pytest.approx(2**-24 * 20)
    odd = dataclasses.replace(truth, margin_error=float("nan"))
    (found,) = check_tokens(_run("run", tokens=(1, 9, 9)), odd)
    assert not found.passed and from_json(to_json(found), Check) == found


def test_a_prompt_without_output_is_not_passed_over(truth: Reference) -> None:
    truth.generated[1] = truth.generated[0]
    first, second = check_tokens(_run("run"), truth)
    assert first.passed and not second.passed and second.detail == "0 tokens were generated, 3 by the reference"


def test_what_was_not_compared_is_listed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    because = "no pass in f32: the weights take too much"
    run = msgspec.structs.replace(_run("run"), events=("other", because))
    assert not_made(run, tmp_path, gradients=False) == {
        "pp=2 in f32: places of the model": because, "pp=2: gradients": because}
    _dump(tmp_path / "run", "f32")
    assert not_made(run, tmp_path, gradients=True) == {}


def _left(folder: Path, run: LayoutRun | None = None, assignment: str = "{}") -> LayoutRun:
    """All that a run without a pass in f32 leaves, in `folder`/x, and its record."""
    launch = folder / "x"
    (launch / "dump").mkdir(parents=True)
    (launch / "assignment.json").write_text(assignment)
    for rank in (0, 1):
        (launch / f"rank-{rank}").mkdir()
        (launch / f"rank-{rank}" / "result.json").write_text("{}")
        (launch / "dump" / f"bf16-rank-{rank}.safetensors").write_bytes(b"")
    _dump(launch / "dump", "bf16")
    return msgspec.structs.replace(run or _run("x/dump"), kept=kept(launch), events=("no pass in f32: no memory",))


def test_files_that_changed_since_the_run(tmp_path: Path) -> None:
    launch, run = tmp_path / "x", _left(tmp_path)
    assert [check.passed for check in check_kept(run, tmp_path)] == [True]
    _dump(launch / "dump", "f32")                   # a stale one
    _dump(launch / "dump", "bf16", layers_1=1e-6)   # another one
    (found,) = check_kept(run, tmp_path)
    assert not found.passed and found.observed == 2.0
    assert found.detail == "changed: dump/bf16-rank-0.safetensors, dump/f32-rank-0.safetensors"
    (launch / "dump" / "bf16-rank-0.safetensors").unlink()
    with pytest.raises(StoreError, match=r"the run left dump/bf16-rank-0\.safetensors .* and it is gone"):
        check_kept(run, tmp_path)


@pytest.mark.parametrize(("change", "absent"), [
    ({"kept": {}}, "assignment.json"),
    ({"events": ()}, "dump/f32-rank-0.safetensors"),  # nothing says that there was no pass in f32
    ({"world_size": 3, "layout": Layout(pp=3)}, "dump/bf16-rank-2.safetensors")])
def test_a_record_that_leaves_something_out(tmp_path: Path, change: dict[str, object], absent: str) -> None:
    run = msgspec.structs.replace(_left(tmp_path), **change)
    with pytest.raises(StoreError, match=absent.replace(".", r"\.")):
        check_kept(run, tmp_path)


def test_ranks_of_a_tp_group_leave_one_dump(tmp_path: Path) -> None:
    run = _left(tmp_path, _run("x/dump", layout=Layout(tp=2)))
    (tmp_path / "x" / "dump" / "bf16-rank-1.safetensors").unlink()
    run = msgspec.structs.replace(run, kept=kept(tmp_path / "x"))
    assert check_kept(run, tmp_path)[0].passed


@pytest.mark.parametrize(("changes", "why"), [({"dtype": "xyz"}, "unknown dtype 'xyz'"),
                                              ({"dump": "../x/dump"}, "leads to another place"),
                                              ({"dump": "/x/dump"}, "leads to another place")])
def test_a_record_that_no_run_wrote(tmp_path: Path, changes: dict[str, str], why: str) -> None:
    record = RunRecord(runs=(msgspec.structs.replace(_left(tmp_path), **changes),), prompts=("p",), max_new_tokens=3)
    with pytest.raises(StoreError, match=why):
        check(_release(tmp_path), record, folder=tmp_path)


@pytest.mark.parametrize("link", ["x", "7-check"])
def test_folders_that_are_links_are_refused(tmp_path: Path, link: str) -> None:
    run, elsewhere = _left(tmp_path), tmp_path / "elsewhere"
    (tmp_path / link).rename(elsewhere) if link == "x" else elsewhere.mkdir()
    (tmp_path / link).symlink_to(elsewhere)
    with pytest.raises(StoreError, match=r"leads to another place|is a symbolic link"):
        check(_release(tmp_path), RunRecord(runs=(run,), prompts=("p",), max_new_tokens=3), folder=tmp_path)


def test_logits_that_tell_nothing(truth: Reference, tmp_path: Path) -> None:
    """Those of the fixture are ones: of any model with weights of zero they are alike."""
    assert not check_logits(truth).passed
    tensors = {"0/logits": np.eye(3, 4, dtype=np.float32)}
    (tmp_path / "good").mkdir()
    save_file(tensors, tmp_path / "good" / "f32-rank-0.safetensors")
    assert check_logits(dataclasses.replace(truth, dump=Dump(tmp_path / "good", "f32"))).passed
    tensors["0/logits"][:] = tensors["0/logits"][0]  # every text leads to the same
    (tmp_path / "same").mkdir()
    save_file(tensors, tmp_path / "same" / "f32-rank-0.safetensors")
    found = check_logits(dataclasses.replace(truth, dump=Dump(tmp_path / "same", "f32")))
    assert not found.passed and found.observed == 3.0


@pytest.mark.parametrize("text", ["", '{"root": "r", "layo', "[]", '{"root": 1}'])
def test_a_damaged_assignment(tmp_path: Path, text: str) -> None:
    record = RunRecord(runs=(_left(tmp_path, assignment=text),), prompts=("p",), max_new_tokens=3)
    with pytest.raises(StoreError, match="is damaged"):
        check(_release(tmp_path), record, folder=tmp_path)


def test_damaged_results(tmp_path: Path) -> None:
    (tmp_path / "x" / "rank-0").mkdir(parents=True)
    (tmp_path / "x" / "rank-0" / "result.json").write_text('{"rank": ')
    with pytest.raises(StoreError, match="are damaged"):
        check_agreement(SimpleNamespace(layout=Layout(tp=2), world_size=2, dump="x/dump"), tmp_path)


def test_a_record_of_nothing_proves_nothing(tmp_path: Path) -> None:
    release = _release(tmp_path)
    for record, what in ((RunRecord(runs=(), prompts=("p",), max_new_tokens=1), "no runs"),
                         (RunRecord(runs=(_run("x/dump"),), prompts=(), max_new_tokens=1), "no prompts")):
        with pytest.raises(StoreError, match=what):
            check(release, record, folder=tmp_path)
    empty = msgspec.structs.replace(_run("x/dump"), prompt_tokens=(3, 0))
    with pytest.raises(UsageError, match="prompt 2 has no tokens"):
        check(release, RunRecord(runs=(empty,), prompts=("p", ""), max_new_tokens=1), folder=tmp_path)
    assert not Verdict(checks=(), layers=(), first_divergence=None, reference="m").passed


def test_no_gradients_no_check(tmp_path: Path, truth: Reference) -> None:
    (tmp_path / "run").mkdir()
    assert check_gradients(_run("run"), tmp_path, truth) == []


def _release(folder: Path, **changes):
    (folder / "config.json").write_text(
        '{"architectures": ["A"], "model_type": "a", "vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 2}')
    return msgspec.structs.replace(tiny.release(folder), **changes)


def test_dumps_that_are_gone(tmp_path: Path) -> None:
    record = RunRecord(runs=(_run("6-run/pp2/dump"),), prompts=("p",), max_new_tokens=3)
    with pytest.raises(StoreError, match=r"the record of pp=2 has no digest of assignment\.json"):
        check(_release(tmp_path), record, folder=tmp_path)
    record = RunRecord(runs=(_left(tmp_path),), prompts=("p",), max_new_tokens=3)
    shutil.rmtree(tmp_path / "x")
    with pytest.raises(StoreError, match=r"the run left assignment\.json .* and it is gone"):
        check(_release(tmp_path), record, folder=tmp_path)


def test_a_reference_that_cannot_run_here(tmp_path: Path) -> None:
    record = RunRecord(runs=(_run("x/dump"),), prompts=("p",), max_new_tokens=3)
    with pytest.raises(NotPossible, match="no weights"):
        check(_release(tmp_path, has_weights=False), record, folder=tmp_path)
    assignment = Assignment(root="r", layout=Layout(pp=2), passes=(), prompts=((1,),), max_new_tokens=1, batch=1,
                            seed=0, gradient_rows=2)
    run = _left(tmp_path, assignment=to_json(assignment).decode())
    record, release = RunRecord(runs=(run,), prompts=("p",), max_new_tokens=3), _release(tmp_path)
    huge = msgspec.structs.replace(release.model, parameters=10**13)
    with pytest.raises(NotPossible, match=r"36\.38 TiB in f32"):
        check(msgspec.structs.replace(release, model=huge), record, folder=tmp_path)


@pytest.mark.slow
def test_a_reference_of_another_size_fails_without_being_run(tmp_path: Path) -> None:
    """As when a layer was dropped and the config says so."""
    ours = read(str(tiny.dense(tmp_path / "ours", num_hidden_layers=3)))
    theirs = read(str(tiny.dense(tmp_path / "theirs")))
    assignment = Assignment(root="r", layout=Layout(pp=2), passes=(), prompts=((1,),), max_new_tokens=1, batch=1,
                            seed=0, gradient_rows=2)
    run = _left(tmp_path, assignment=to_json(assignment).decode())
    verdict = check(ours, RunRecord(runs=(run,), prompts=("a",), max_new_tokens=3), folder=tmp_path, reference=theirs)
    failed = {each.name: each.detail for each in verdict.checks if not each.passed}
    assert "layers is 3 instead of 4" in failed["config: sizes of the model that are not the reference's"]
    assert "num_hidden_layers is 3 instead of 4" in failed["config: keys and files that are not the reference's"]
    assert not verdict.passed and "places of the model, tokens and gradients" in verdict.not_made
    assert not (tmp_path / "7-check").exists()
