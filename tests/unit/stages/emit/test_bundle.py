"""The bundle: what it holds with a layout, without one, and with a failed check."""

from __future__ import annotations

import hashlib
import io
import json

import msgspec
from tests.support.results import adapted, large_candidate, large_target, planned, small_verdict, too_large

from dayzero.registry import Registry
from dayzero.schema import Layout, Plan
from dayzero.stages.emit import emit, overview
from dayzero.targets import Launch


def test_files_and_manifest() -> None:
    results = adapted()
    bundle = emit(results.release, results.plan, results.target, verdict=results.verdict)
    assert sorted(bundle.files) == ["launch-vllm.sh", "manifest.json", "plan.json"]
    manifest = json.loads(bundle.files["manifest.json"])
    for name, entry in manifest["files"].items():
        assert entry["sha256"] == hashlib.sha256(bundle.files[name].encode()).hexdigest()
    assert set(manifest["files"]) == set(bundle.files) - {"manifest.json"}
    assert manifest["checks"] == {
        "passed": True, "proven": True, "reference": "one process, fp32", "comparisons": 6, "failed": [],
        "not_made": {}}
    assert manifest["release"]["weight_files"]["model-00002-of-00003.safetensors"]["sha256"] == "2" * 64
    again = emit(results.release, results.plan, results.target, verdict=results.verdict)
    assert again == bundle


def test_plan_json_has_the_layout_and_its_stages() -> None:
    results = adapted()
    document = json.loads(emit(results.release, results.plan, results.target).files["plan.json"])
    assert document["layout"] == {"tp": 1, "pp": 2, "ep": 1, "dp": 1, "cp": 1, "attention_tp": 0}
    first, last = document["candidates"][0]["stages"]
    assert (first["first_layer"], first["end_layer"], last["first_layer"], last["end_layer"]) == (0, 14, 14, 30)
    assert sum(last["bytes_per_device"].values()) == document["candidates"][0]["need_bytes"]
    assert document["candidates"][0]["tpot_s"]["low"] < document["candidates"][0]["tpot_s"]["value"]


def test_without_a_fitting_layout_there_is_no_command_but_a_reason() -> None:
    results = too_large()
    bundle = emit(results.release, results.plan, results.target)
    assert sorted(bundle.files) == ["manifest.json", "plan.json"]
    assert bundle.commands == {}
    assert "needs 193.71 GiB" in bundle.notes[0]
    document = json.loads(bundle.files["plan.json"])
    assert document["layout"] is None
    assert [candidate["fits"] for candidate in document["candidates"]] == [False]
    empty = msgspec.structs.replace(results.plan, candidates=())
    assert "none of the 7 layouts is legal" in emit(results.release, empty, results.target).notes[0]


class Other:
    """An emit target that writes what no other writes."""

    name, version = "other", "1"

    def launch(self, release, candidate, target, comments=()):
        return Launch(commands={"other": "other run"}, files={"other.yaml": "tp: 1\n", "Makefile": "all:\n"}, notes=(),
                      what={"other.yaml": "its settings"})


def test_every_kind_of_file_is_told_what_it_is(monkeypatch) -> None:
    targets: Registry = Registry("emit target")
    targets.add("other", Other())
    monkeypatch.setattr("dayzero.stages.emit.bundle.EMIT_TARGETS", targets)
    results = adapted()
    told = json.loads(emit(results.release, results.plan, results.target).files["manifest.json"])["files"]
    assert {name: entry["what"] for name, entry in told.items()} == {
        "plan.json": "the plan, for programs", "other.yaml": "its settings", "Makefile": "for the engine other"}


def test_a_failed_check_is_written_into_the_script() -> None:
    results = adapted()
    bundle = emit(results.release, results.plan, results.target, verdict=small_verdict(passed=False))
    assert "WARNING: 2 of 6 comparisons" in bundle.files["launch-vllm.sh"]
    assert "pp=2: logits, relative L2" in json.loads(bundle.files["manifest.json"])["checks"]["failed"]
    assert "Not checked" in emit(results.release, results.plan, results.target).files["launch-vllm.sh"]


def test_plans_for_an_engine_without_emitter_say_so() -> None:
    results = planned()
    bundle = emit(results.release, results.plan, large_target(2, engine="runtime"))
    assert bundle.commands
    assert bundle.foremost == bundle.notes[:1]
    assert "engine is runtime, but commands can be written for vllm only" in bundle.foremost[0]
    unnamed = emit(results.release, results.plan, large_target(2, engine="any"))
    assert unnamed.foremost == ("The target names no engine; the command is for vllm.",)
    assert emit(results.release, results.plan, large_target(2)).foremost == ()


def _plan_of(*layouts: Layout) -> Plan:
    """They fit, each a quarter slower than the one before."""
    target = large_target(2)
    candidates = tuple(large_candidate(layout, target, fits=True, slower=1.25**index)
                       for index, layout in enumerate(layouts))
    return msgspec.structs.replace(planned().plan, candidates=candidates)


def test_the_best_layout_that_the_engine_can_express_is_emitted() -> None:
    # vLLM spreads experts over all tp*dp ranks or over none: ep=4 on tp*dp = 8 has no command, ep=8 has one.
    plan = _plan_of(Layout(tp=4, pp=2, ep=4, dp=2), Layout(tp=8, pp=2, ep=4), Layout(tp=8, pp=2, ep=8), Layout(tp=16))
    bundle = emit(planned().release, plan, large_target(2))
    assert all("--enable-expert-parallel" in command for command in bundle.commands.values())
    note = bundle.foremost[0]
    assert "for tp=8 pp=2 ep=8, not for the plan's first layout tp=4 pp=2 ep=4 dp=2" in note
    assert "all tp*dp = 8 ranks" in note
    # 64 sequences at 21 ms a token, and at 1.25**2 times that
    assert "1.95 ktokens/s (1.17 to 2.73) instead of 3.05 ktokens/s (1.83 to 4.27), 36 % less" in note
    document = json.loads(bundle.files["plan.json"])
    assert document["layout"]["tp"] == 4  # the plan's own
    assert document["launch"]["layouts"]["vllm"]["tp"] == 8
    assert document["launch"]["notes"] == [note]
    comments = " ".join(line.lstrip("# ") for line in bundle.files["launch-vllm.sh"].splitlines())
    assert note in comments
    assert "tp=8 pp=2 ep=8. Options checked" in comments and "1.95 ktokens/s (1.17 to 2.73) for 64" in comments


def test_a_command_for_one_of_several_replicas_says_so_first() -> None:
    bundle = emit(planned().release, _plan_of(Layout(tp=8, dp=2)), large_target(2))
    assert len(bundle.foremost) == 1 and "start it 2 times" in bundle.foremost[0]
    assert bundle.notes.count(bundle.foremost[0]) == 1


def test_without_any_layout_that_the_engine_can_express_that_is_said() -> None:
    bundle = emit(planned().release, _plan_of(Layout(tp=8, pp=2, ep=4), Layout(tp=16, ep=4)), large_target(2))
    assert bundle.commands == {}
    assert "vllm can express none of the 2 layouts" in bundle.foremost[0] and "tp*dp = 8 ranks" in bundle.foremost[0]
    assert json.loads(bundle.files["plan.json"])["launch"]["layouts"] == {"vllm": None}


def test_a_hostile_name_cannot_leave_its_comment() -> None:
    results = adapted()
    release = msgspec.structs.replace(results.release, name="x\nrm -rf /\r#", root="a b; rm -rf /")
    script = emit(release, results.plan, results.target).files["launch-vllm.sh"]
    assert not any(line.startswith("rm") for line in script.splitlines())
    assert "exec vllm serve 'a b; rm -rf /'" in script


def test_overview_shows_commands_without_reading_markup() -> None:
    from rich.console import Console

    console = Console(width=200, file=io.StringIO())
    results = adapted()
    bundle = emit(results.release, results.plan, results.target)
    console.print(overview(msgspec.structs.replace(bundle, notes=("[red]kept[/red]",))))
    text = console.file.getvalue()
    assert "vllm serve demo/SmolLM2-135M" in text
    assert "[red]kept[/red]" in text
