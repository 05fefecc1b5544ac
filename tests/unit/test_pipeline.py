"""Stages are kept, made again and recorded; on real cards, without torch."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from dayzero.errors import DayzeroError, LayoutError, ReleaseError, TargetError, UsageError
from dayzero.job import Job, Options
from dayzero.pipeline import STAGES, _file_identity, adapt, advance, failed, open_job, results
from dayzero.schema import Device, Findings, Plan, digest

TARGET = '[cluster]\ndevice = "h200"\ndevices_per_node = 1\n'
LOCAL = TARGET.replace("h200", "local")
HOST = Device(name="local", vendor="", arch="", memory_bytes=10**10, memory_bandwidth=1e10, flops={"f32": 1e11})


@pytest.fixture
def job(tmp_path: Path, root: Path) -> Job:
    (tmp_path / "one.toml").write_text(TARGET)
    return open_job(str(root / "examples/cards/smollm2-135m.toml"), tmp_path / "one.toml", runs=tmp_path / "runs")


def again(job: Job, options: Options | None = None, **stages: object) -> set[str]:
    """Advance a fresh job in the same run directory; the names of the stages that were made anew."""
    before = {path.name: path.stat().st_mtime_ns for path in job.folder.path.glob("*.json")}
    job.made.clear()
    job.options = options or job.options
    advance(job, **stages)
    return {path.stem.partition("-")[2] for path in job.folder.path.glob("*.json")
            if before.get(path.name) != path.stat().st_mtime_ns}


def test_numbers_and_needs_are_in_order() -> None:
    numbers = [stage.number for stage in STAGES if stage.name != "target"]
    assert numbers == sorted(set(numbers)) and 0 not in numbers
    seen: set[str] = set()
    for stage in STAGES:
        assert set(stage.needs) | set(stage.uses) <= seen
        seen.add(stage.name)


def test_a_card_goes_through_and_says_what_is_not_possible(job: Job) -> None:
    outcome = results(advance(job, upto=None))
    status = {stage.name: (stage.status, stage.reason) for stage in outcome.stages}
    assert status["run"][0] == "not_possible" and "no weights" in status["run"][1]
    assert status["check"] == status["run"]
    assert outcome.plan and outcome.plan.best and not failed(outcome)
    assert (job.folder.path / "9-report.html").stat().st_size > 1_000_000  # charts are inlined
    assert job.folder.path.name == "smollm2-135m@one"


def test_nothing_is_made_twice(job: Job) -> None:
    advance(job, upto="plan")
    assert again(job, upto="plan") == set()


def test_a_changed_target_keeps_what_was_read(job: Job) -> None:
    advance(job, upto="plan")
    job.target.write_text(TARGET.replace("h200", "h100"))
    assert again(job, upto="plan") == {"target", "plan"}


def test_a_changed_option_remakes_what_uses_it(job: Job) -> None:
    advance(job, upto="plan")
    assert again(job, Options(top=3), upto="plan") == {"plan"}


def test_a_later_stage_takes_what_was_made_with_other_options(job: Job) -> None:
    advance(job, upto="plan")
    again(job, Options(top=3), upto="plan")
    assert again(job, Options(), only="report") == {"report"}
    assert len(job.need("plan", Plan).candidates) <= 3
    assert again(job, Options(), upto="plan") == {"plan"}


def test_force_from_and_only(job: Job) -> None:
    advance(job, upto="plan")
    assert again(job, upto="plan", force=True) == {"target", "read", "plan"}
    assert again(job, upto="plan", from_stage="preflight") == {"plan"}
    assert again(job, upto="preflight", from_stage="read") == {"read", "preflight"}
    assert again(job, only="preflight") == {"preflight"}
    with pytest.raises(UsageError, match="no stage"):
        again(job, from_stage="plam")


def test_an_interrupted_run_goes_on(job: Job) -> None:
    advance(job, upto="plan")
    (job.folder.path / "5-plan.json").unlink()
    (job.folder.path / "1-read.json").write_text("{")
    assert again(job, upto="plan") == {"read", "plan"}


def test_the_library_call(tmp_path: Path, root: Path) -> None:
    (tmp_path / "eight.toml").write_text(TARGET.replace("= 1", "= 8"))
    outcome = adapt(str(root / "examples/cards/kimi-k3.toml"), tmp_path / "eight.toml", runs=tmp_path / "runs")
    assert isinstance(outcome.plan, Plan) and outcome.plan.best is None
    assert failed(outcome) == ["preflight found errors", "no layout fits"]

@pytest.mark.parametrize("source", ["nowhere", "no/such/folder", "nowhere.toml", "x" * 5000, "/"])
def test_an_absent_release_leaves_nothing(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is refused at once or, like a folder that is no release, after this machine was measured."""
    monkeypatch.setattr("dayzero.backends.measure_host", lambda ranks, progress: HOST)
    (tmp_path / "here.toml").write_text(LOCAL)
    with pytest.raises(DayzeroError):
        adapt(source, tmp_path / "here.toml", runs=tmp_path / "a" / "runs")
    assert [path.name for path in tmp_path.iterdir()] == ["here.toml"]


@pytest.mark.parametrize("upto", [None, "preflight", "plan"])
def test_a_release_that_cannot_be_read_is_refused_before_the_machine_is_measured(
        upto: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(ranks: int, progress: object) -> Device:
        raise AssertionError("measured")

    monkeypatch.setattr("dayzero.backends.measure_host", measure)
    (tmp_path / "here.toml").write_text(LOCAL)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{")
    with pytest.raises(ReleaseError, match=r"config\.json"):
        advance(open_job(str(tmp_path / "model"), tmp_path / "here.toml", runs=tmp_path / "runs"), upto)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("wrong", ["devices = 1", "[layout]\ntp = 3", '[workload]\nkind = "train"',
                                   '[engine]\nname = "vlm"'])
def test_a_wrong_target_is_refused_before_anything_is_read(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "here.toml").write_text(LOCAL + wrong)
    (tmp_path / "model").mkdir()
    with pytest.raises((TargetError, LayoutError)):
        advance(open_job(str(tmp_path / "model"), tmp_path / "here.toml", runs=tmp_path / "runs"))


def test_an_absent_reference_is_refused_before_anything_is_made(job: Job) -> None:
    job.options = Options(reference="nowhere")
    with pytest.raises(ReleaseError, match="nowhere"):
        advance(job)
    assert not job.folder.path.exists()


def test_a_release_may_hold_files_that_cannot_be_looked_at(tmp_path: Path) -> None:
    release = tmp_path / "release"
    release.mkdir()
    (release / "config.json").write_text("{}")
    (release / os.fsdecode(b"\xff")).write_text("")
    (release / "loop").symlink_to("loop")
    digest(_file_identity(str(release)))
    assert [len(state) for state in _file_identity(str(release))] == [4, 2, 4]
    before = _file_identity(str(release))
    (release / "config.json").write_text("{ }")
    assert _file_identity(str(release)) != before


def test_a_folder_without_a_config_is_not_searched(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert _file_identity(str(tmp_path)) == [[str(tmp_path)]]


def test_a_look_at_some_rules_is_not_preflight(job: Job) -> None:
    advance(job, upto="preflight")
    assert again(job, upto="preflight") == set()
    some = Options(select=("shard-",), ignore=("shard-heads",))
    assert again(job, some, upto="preflight") == {"preflight"}
    assert again(job, some, upto="preflight") == set()
    job.options = Options()
    assert "preflight" in again(job, upto="run"), "run went by a look at some rules"
    with pytest.raises(UsageError, match="no rule is named 'shard'"):
        again(job, Options(select=("shard",)), upto="preflight")


def test_a_waiver_that_expires_makes_preflight_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def on(day: datetime.date) -> None:
        calendar = SimpleNamespace(date=SimpleNamespace(today=lambda: day))
        for module in ("dayzero.pipeline", "dayzero.stages.preflight.rule"):
            monkeypatch.setattr(f"{module}.datetime", calendar)

    job.target.write_text(TARGET + '[[waivers]]\nrule = "rope-base"\nreason = "known"\nexpires = 2027-01-01\n')
    on(datetime.date(2027, 1, 1))
    advance(job, upto="preflight")
    assert again(job, upto="preflight") == set()
    on(datetime.date(2027, 1, 2))
    assert again(job, upto="preflight") == {"preflight"}
    found = job.need("preflight", Findings)
    assert [finding.rule for finding in found.findings] == ["waiver-expired"] and found.verdict == "warn"


def test_what_is_waived_does_not_stop_adapting(job: Job) -> None:
    one = '[layout]\ntp = 2\n'
    job.target.write_text(TARGET.replace("= 1", "= 2") + one)
    assert "preflight found errors" in failed(results(advance(job)))
    waivers = "".join(f'[[waivers]]\nrule = "{rule}"\nreason = "padded"\nexpires = 2999-01-01\n'
                      for rule in ("shard-heads", "shard-kv-heads"))
    job.target.write_text(TARGET.replace("= 1", "= 2") + one + waivers)
    again(job)
    outcome = results(job)
    assert outcome.findings and len(outcome.findings.waived) == 2
    assert "preflight found errors" not in failed(outcome)
    assert "accepted until 2999-01-01: padded" in (job.folder.path / "9-report.html").read_text()


@pytest.mark.parametrize("folder", ["6-run", "8-bundle"])
def test_folders_that_lead_elsewhere_are_refused(job: Job, tmp_path: Path, folder: str) -> None:
    advance(job, upto="plan")
    (tmp_path / "elsewhere").mkdir()
    (job.folder.path / folder).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DayzeroError, match="is a symbolic link"):
        again(job)
    assert list((tmp_path / "elsewhere").iterdir()) == []
