"""Which layouts are run, and what is said when none can be."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.support import tiny

from dayzero.backends import backends
from dayzero.errors import LayoutError, NotPossible
from dayzero.schema import Candidate, Estimate, Layout, Plan, Rejected, Release, WeightFamily
from dayzero.stages.run.decoding import decoded
from dayzero.stages.run.layouts import backend_of, check_possible, choose

_ESTIMATE = Estimate(value=1.0, low=0.5, high=2.0, unit="s", source="test")


def _candidate(text: str, *, fits: bool = True) -> Candidate:
    return Candidate(
        layout=Layout.parse(text), fits=fits, stages=((0, 4),), bytes_per_device={}, usable_bytes=0,
        bytes_per_stage=(), max_sequences=1, ttft_s=_ESTIMATE, tpot_s=_ESTIMATE, tokens_per_s=_ESTIMATE,
        decode_seconds={}, prefill_seconds={}, limits=(), explanation="")


def _plan(*candidates: Candidate, rejected: tuple[Rejected, ...] = ()) -> Plan:
    return Plan(candidates=candidates, rejected=rejected, evaluated=0, seconds=0.0, workload={})


def _release(tmp_path: Path, **changes: object) -> Release:
    (tmp_path / "config.json").write_text(
        '{"architectures": ["A"], "model_type": "a", "vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 2}')
    return msgspec.structs.replace(tiny.release(tmp_path), **changes)


def test_the_best_two_that_use_all_devices() -> None:
    plan = _plan(_candidate("dp=2"), _candidate(""), _candidate("pp=2"), _candidate("tp=2"))
    assert choose(plan, tiny.target(2), ()) == ((Layout(dp=2), Layout(pp=2)), {})


def test_what_the_runtime_cannot_run_is_passed_over_with_the_reason() -> None:
    plan = _plan(_candidate("tp=4,attention_tp=2"), _candidate("pp=4", fits=False), _candidate("dp=4"),
                 _candidate("tp=4"))
    chosen, skipped = choose(plan, tiny.target(4), ())
    assert chosen == (Layout(dp=4), Layout(tp=4))
    assert "attention_tp=2" in "".join(skipped) and len(skipped) == 1


def test_a_pinned_layout_alone() -> None:
    plan = _plan(_candidate("dp=2"), _candidate("pp=2"))
    assert choose(plan, tiny.target(2, layouts=(Layout(pp=2),)), ()) == ((Layout(pp=2),), {})
    assert choose(plan, tiny.target(2, layouts=(Layout(pp=2),)), (Layout(),)) == ((Layout(),), {})


def test_an_illegal_layout_is_not_tried() -> None:
    rejected = Rejected(layout=Layout(tp=2), rule="shard-heads", message="9 heads cannot be split over 2 ranks")
    with pytest.raises(NotPossible, match="tp=2: 9 heads cannot be split"):
        choose(_plan(rejected=(rejected,)), tiny.target(2), (Layout(tp=2),))
    with pytest.raises(NotPossible, match="tp=2: it does not fit into memory"):
        choose(_plan(_candidate("tp=2", fits=False)), tiny.target(2), (Layout(tp=2),))


def test_nothing_fits() -> None:
    with pytest.raises(NotPossible, match="no layout of the plan fits on 2 devices"):
        choose(_plan(_candidate("tp=2", fits=False)), tiny.target(2), ())


def test_a_layout_larger_than_the_cluster_is_a_wrong_request() -> None:
    with pytest.raises(LayoutError, match="but there are 2"):
        choose(_plan(), tiny.target(2), (Layout(tp=4),))


def test_possible_here(tmp_path: Path) -> None:
    assert check_possible(_release(tmp_path), tiny.target(2)) == "bf16"


def test_not_possible_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, target = _release(tmp_path), tiny.target(2)
    with pytest.raises(NotPossible, match=r"^no weights"):
        check_possible(_release(tmp_path, has_weights=False), target)
    if not backends().get("cuda").is_available():
        with pytest.raises(NotPossible, match="backend cuda cannot be used here"):
            check_possible(release, target, "cuda")
    elsewhere = msgspec.structs.replace(target.cluster.device, name="h200", vendor="nvidia", arch="sm_90")
    with pytest.raises(NotPossible, match="this machine has no h200"):
        backend_of(msgspec.structs.replace(target, cluster=msgspec.structs.replace(target.cluster, device=elsewhere)))
    with pytest.raises(NotPossible, match="2 nodes"):
        check_possible(release, msgspec.structs.replace(
            target, cluster=msgspec.structs.replace(target.cluster, nodes=2)))
    family = WeightFamily(role="experts.up", pattern="w", shape=(4, 4), dtype="F8_E4M3", scheme="fp8", split="width",
                          axis=0, count=1, layers=(), experts=0, parameters=16, stored_bytes=16)
    quantised = _release(tmp_path, model=msgspec.structs.replace(release.model, families=(family,)))
    assert check_possible(quantised, target) == "bf16"
    assert decoded(quantised.model, "bf16") == "parameters stored as fp8 (100%) were decoded to bf16"
    assert decoded(release.model, "bf16") == ""
    monkeypatch.setattr("dayzero.stages.run.layouts.find_spec", lambda name: None)
    with pytest.raises(NotPossible, match="torch and transformers not installed"):
        check_possible(release, target)
