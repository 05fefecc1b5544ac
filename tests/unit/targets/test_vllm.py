"""What the vLLM target refuses, notes and quotes."""

from __future__ import annotations

import json
import shlex

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.results import adapted, large_candidate, large_release, large_target

from dayzero.errors import LayoutError, UsageError
from dayzero.schema import Arrivals, Layout, Offload
from dayzero.targets import EMIT_TARGETS
from dayzero.targets.base import comment
from dayzero.targets.vllm import VLLM, profile


def _launch(layout: Layout, nodes: int = 2, **changes):
    target = large_target(nodes)
    release = msgspec.structs.replace(large_release(), **changes)
    return VLLM.launch(release, large_candidate(layout, target, fits=True), target)


def _value(command: str, flag: str) -> str:
    words = shlex.split(command)
    return words[words.index(flag) + 1]


def test_engine_is_found_by_name() -> None:
    assert EMIT_TARGETS.get("vllm") is VLLM
    with pytest.raises(UsageError, match="no emit target"):
        EMIT_TARGETS.get("vlm")


@pytest.mark.parametrize(("layout", "word"), [
    (Layout(tp=8, attention_tp=2), "attention_tp=2"),
    (Layout(tp=8, ep=4), "ep=4"),
    (Layout(tp=8, cp=3), "cp=3"),
    (Layout(tp=6, dp=2, ep=12, pp=1), ""),  # 2 nodes of 6: possible
    (Layout(tp=3, dp=5, ep=15), "do not lie evenly"),  # 15 ranks on 2 nodes of 8
])
def test_what_the_engine_cannot_do_is_said(layout: Layout, word: str) -> None:
    launch = _launch(layout)
    assert bool(launch.commands) is not bool(word)
    assert not word or (word in launch.notes[0] and launch.files == {})


def test_replicas_with_all_experts_are_servers_of_their_own() -> None:
    # FusedMoEParallelConfig.make, vLLM 0.32.0: without expert parallel, dp ranks share the experts as tensor parallel.
    launch = _launch(Layout(tp=8, dp=2))
    assert list(launch.commands) == ["vllm"]  # 8 ranks: one node
    assert "--data-parallel-size" not in launch.commands["vllm"]
    assert "start it 2 times" in launch.notes[0]
    assert _value(launch.commands["vllm"], "--max-num-seqs") == "32"  # 64 sequences over 2 replicas


def test_dense_replicas_are_data_parallel() -> None:
    results = adapted()
    command = VLLM.launch(results.release, results.plan.candidates[1], results.target).commands["vllm"]
    assert _value(command, "--data-parallel-size") == "2"
    assert _value(command, "--max-num-seqs") == "1"


def test_length_is_rounded_up_and_bounded_by_the_model() -> None:
    model = msgspec.structs.replace(large_release().model, max_positions=4500)
    launch = _launch(Layout(tp=8, pp=2), model=model)
    assert _value(launch.commands["vllm, node 0"], "--max-model-len") == "4500"
    assert any("4608 tokens exceed the 4500" in note for note in launch.notes)


def test_hub_releases_are_named_with_their_revision() -> None:
    command = _launch(Layout(tp=8), hub="org/name@abc123").commands["vllm"]
    assert shlex.split(command)[:5] == ["vllm", "serve", "org/name", "--revision", "abc123"]
    assert not any("card" in note for note in _launch(Layout(tp=8), hub="org/name@abc123").notes)


def test_own_code_is_trusted_only_where_the_config_names_some() -> None:
    assert "--trust-remote-code" in _launch(Layout(tp=8)).commands["vllm"]
    assert "--trust-remote-code" not in _launch(Layout(tp=8), config={}).commands["vllm"]
    nested = {"text_config": {"auto_map": {"AutoConfig": "configuration_x.X"}}}
    assert "--trust-remote-code" in _launch(Layout(tp=8), config=nested).commands["vllm"]


def test_room_limits_the_sequences() -> None:
    target = large_target(1)
    candidate = msgspec.structs.replace(large_candidate(Layout(tp=8), target, fits=True), max_sequences=5)
    launch = VLLM.launch(large_release(), candidate, target)
    assert _value(launch.commands["vllm"], "--max-num-seqs") == "5"
    assert any("room for 5" in note for note in launch.notes)


def test_room_is_dealt_out_to_data_parallel_ranks() -> None:
    target = large_target(2)
    candidate = large_candidate(Layout(tp=8, dp=2, ep=16), target, fits=True)
    for room, each in ((96, "32"), (11, "5"), (1, "1")):  # 64 sequences are wanted
        launch = VLLM.launch(large_release(), msgspec.structs.replace(candidate, max_sequences=room), target)
        assert {_value(command, "--max-num-seqs") for command in launch.commands.values()} == {each}


def test_another_version_than_the_checked_one_is_noted() -> None:
    target = large_target(1)
    target = msgspec.structs.replace(target, engine=msgspec.structs.replace(target.engine, version="0.11.0"))
    notes = VLLM.launch(large_release(), large_candidate(Layout(tp=8), target, fits=True), target).notes
    assert any(profile().version in note and "0.11.0" in note for note in notes)


@given(name=st.text(max_size=60))
def test_names_from_releases_stay_words(name: str) -> None:
    root = name.replace("\0", "") or "x"
    launch = _launch(Layout(tp=8), root=root, origin="folder", name=name)
    assert shlex.split(launch.commands["vllm"])[2] == root


@given(text=st.text(max_size=400))
def test_comments_never_end_early(text: str) -> None:
    for line in comment(text):
        assert line.startswith("#")
        assert len(line.splitlines()) == 1


@given(tp=st.integers(1, 16), pp=st.integers(1, 4), dp=st.integers(1, 8), ep=st.integers(1, 64), cp=st.integers(1, 4))
def test_any_layout_gives_commands_or_a_reason(tp: int, pp: int, dp: int, ep: int, cp: int) -> None:
    try:
        layout = Layout(tp=tp, pp=pp, dp=dp, ep=ep, cp=cp)
    except LayoutError:
        return
    launch = _launch(layout, nodes=64)
    assert bool(launch.commands) == bool(launch.files)
    assert launch.commands or launch.notes
    for command in launch.commands.values():
        assert {word for word in shlex.split(command) if word.startswith("--")} <= set(profile().flags["allowed"])


def _command(candidate, target, release=None) -> str:
    return VLLM.launch(release or large_release(), candidate, target).commands.get("vllm", "")


def test_weights_outside_of_the_devices() -> None:
    target = large_target(1)
    plain = large_candidate(Layout(tp=8), target, fits=True)
    kept = Offload(shares={"experts": 0.5}, host_bytes=3 * 2**30 + 1, disk_bytes=0, needed_bytes=2**30, bound_s=0.1)
    moved = msgspec.structs.replace(plain, offload=kept)
    assert _value(_command(moved, target), "--cpu-offload-gb") == "4"
    assert "--cpu-offload-gb" not in _command(plain, target)
    for changes in ({"disk_bytes": 1}, {"shares": {"cache": 0.1}}):
        other = msgspec.structs.replace(plain, offload=msgspec.structs.replace(kept, **changes))
        launch = VLLM.launch(large_release(), other, target)
        assert not launch.commands and "the plan also needs" in launch.notes[0]


def test_tokens_that_are_proposed_and_prefixes_that_are_found() -> None:
    target = large_target(1)
    workload = msgspec.structs.replace(target.workload, draft_tokens=3, acceptance_length=2.5, prefix_hit=0.5)
    asked = msgspec.structs.replace(target, workload=workload, engine=msgspec.structs.replace(
        target.engine, facts=msgspec.structs.replace(target.engine.facts, speculative="mtp")))
    candidate, release = large_candidate(Layout(tp=8), target, fits=True), large_release()
    layers = msgspec.structs.replace(release, model=msgspec.structs.replace(release.model, mtp_layers=1))
    command = _command(candidate, asked, layers)
    assert json.loads(_value(command, "--speculative-config")) == {"method": "mtp", "num_speculative_tokens": 3}
    assert "--enable-prefix-caching" in command and "--enable-prefix-caching" not in _command(candidate, target)
    other = msgspec.structs.replace(release, model=msgspec.structs.replace(release.model, mtp_layers=0))
    launch = VLLM.launch(other, candidate, asked)
    assert "--speculative-config" not in launch.commands["vllm"]
    assert any("3 proposed tokens" in note for note in launch.notes)


def test_the_version_that_has_the_model_is_told_where_none_is_stated() -> None:
    target, release = large_target(1), large_release()
    facts = msgspec.structs.replace(target.engine.facts, supported_since={release.model.architectures[0]: "0.27.0"})
    for stated, told in (("", True), ("0.28.0", False)):
        engine = msgspec.structs.replace(target.engine, facts=facts, version=stated)
        notes = VLLM.launch(release, large_candidate(Layout(tp=8), target, fits=True),
                            msgspec.structs.replace(target, engine=engine)).notes
        assert any(note.endswith("needs vllm 0.27.0 or newer.") for note in notes) is told


def test_room_for_random_arrivals() -> None:
    target = large_target(1)
    arrivals = Arrivals(rate=4.0, capacity=9.0, sequences=100.0, ttft_percentiles={}, gap_percentiles={})
    candidate = msgspec.structs.replace(large_candidate(Layout(tp=8), target, fits=True), arrivals=arrivals,
                                        max_sequences=1000)
    assert _value(_command(candidate, target), "--max-num-seqs") == "141"  # 100 + 4 x 10 + 1
