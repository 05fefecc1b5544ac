"""Traces and ledgers of a release's own code: what they find, what they say, and what misbehaving code ends in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from tests.support.own_code import (
    EXPERTS,
    HEADS,
    HIDDEN,
    LAYERS,
    MODELING,
    PARAMETERS,
    VOCAB,
    WIDTH,
    guest,
    tensors,
)

from dayzero.errors import NotPossible, ReleaseError, StageError
from dayzero.runtime.isolation import Limits
from dayzero.schema import Release
from dayzero.stages.read import read
from dayzero.stages.trace import consumption, ledgers, trace

LIMITS = Limits(seconds=120, memory=4 << 30)


def release(folder: Path, tmp_path: Path) -> Release:
    return read(folder, cache=tmp_path / "cache", metadata_only=True)


def test_own_code_is_traced_with_trust_only(tmp_path) -> None:
    made = release(guest(tmp_path / "guest"), tmp_path)
    with pytest.raises(NotPossible, match="not executed") as caught:
        trace(made)
    assert "--trust-remote-code" in caught.value.hint
    graph = trace(made, batch=2, tokens=16, context=8, trust=LIMITS)
    assert graph.parameters == PARAMETERS and "modeling_guest.GuestForCausalLM" in graph.source
    assert set(graph.phases) == {"prefill", "decode"} and not graph.missing
    # 2 x weights of all matrices x tokens: this code runs every expert on every token.
    layer = 4 * HIDDEN**2 + EXPERTS * HIDDEN + EXPERTS * 2 * HIDDEN * WIDTH
    matrices = sum(call.flops for call in graph.operators if call.phase == "prefill" and call.op == "aten.mm")
    assert matrices == 2 * 2 * 16 * (LAYERS * layer + VOCAB * HIDDEN)
    assert any(line.startswith("transformers.utils.generic.OutputRecorder: ") for line in graph.supplied)
    assert any("is_torch_fx_available" in line for line in graph.supplied)
    assert graph.isolation and "modeling_guest" not in " ".join(sys.modules)


@pytest.mark.slow
def test_ledgers_of_own_code(tmp_path) -> None:
    consumed, covered = ledgers(release(guest(tmp_path / "guest"), tmp_path), trust=LIMITS)
    assert covered is not None and covered.tensors == covered.placed == len(tensors())
    assert not covered.unfilled and not covered.misshapen and "GuestForCausalLM" in covered.source
    line = next(number for number, text in enumerate(MODELING.splitlines(), 1) if "mul(self.config.gate_scale)" in text)
    assert consumed.places("gate_scale") == (f"modeling_guest.py:{line}",)
    assert consumed.places("num_experts") and not consumed.places("unread") and not consumed.incomplete
    assert consumption(release(tmp_path / "guest", tmp_path), trust=LIMITS).reads == consumed.reads


@pytest.mark.slow
def test_shapes_that_the_own_code_does_not_declare_are_found(tmp_path) -> None:
    stored = tensors(decay=HEADS + 2)
    lost = "model.layers.1.experts.3.up_proj.weight"
    del stored[lost]
    stored["model.layers.0.stray.weight"] = ((2, 2), "BF16")
    _, covered = ledgers(release(guest(tmp_path / "guest", stored=stored), tmp_path), trust=LIMITS)
    assert covered is not None
    assert [(one.pattern, one.file, one.declared, one.layers) for one in covered.misshapen] == [
        ("model.layers.{L}.decay", (HEADS + 2,), (HEADS,), (0, 1))]
    assert [(gap.layers, gap.filled) for gap in covered.unfilled] == [((1,), 0.0)]
    assert covered.placed == covered.tensors - 1


@pytest.mark.parametrize(("code", "says"), [
    ("from transformers.utils import no_such_name", r"no_such_name.*\(modeling_guest.py:1\)"),
    ("open('/no/such/file')", r"No such file.*\(modeling_guest.py:1\)"),
    ("\n\nthis is no python", r"\(modeling_guest.py:3\)"),
    (f"x = {'-' * 100_000}1", r"too deep for the parser.*\(modeling_guest.py\)"),
])  # fmt: skip
@pytest.mark.slow
def test_code_that_cannot_be_imported_is_told_with_its_line(tmp_path, code, says) -> None:
    made = release(guest(tmp_path / "guest", modeling=f"{code}\n{MODELING}"), tmp_path)
    with pytest.raises(NotPossible, match=says):
        trace(made, trust=LIMITS)


def test_another_repositorys_code_is_not_run_from_a_file_of_its_name(tmp_path) -> None:
    entry = "evil/repo--modeling_guest.GuestForCausalLM"
    made = release(guest(tmp_path / "guest"), tmp_path)
    made.config["auto_map"] = {"AutoModelForCausalLM": entry}
    for function in (trace, consumption):
        with pytest.raises(ReleaseError, match=f"another repository.*{entry}") as caught:
            function(made, trust=LIMITS)
        assert "without the repository: modeling_guest.GuestForCausalLM" in caught.value.hint
    with pytest.raises(NotPossible, match="is another repository's: evil"):
        trace(made)


@pytest.mark.slow
def test_a_model_that_cannot_be_built_is_told_with_its_line(tmp_path) -> None:
    modeling = MODELING.replace("super().__init__()", "super().__init__(); config.no_such_key", 1)
    with pytest.raises(NotPossible, match=r"no_such_key.*\(modeling_guest.py:\d+\)"):
        trace(release(guest(tmp_path / "guest", modeling=modeling), tmp_path), trust=LIMITS)


@pytest.mark.parametrize(("code", "says"), [
    ("import os; os._exit(0)", "exit code 0"), ("import sys; sys.exit(5)", "exit code 5"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt"), ("import time; time.sleep(600)", "not done after 8 s"),
])  # fmt: skip
@pytest.mark.slow
def test_code_that_misbehaves_ends_in_an_error(tmp_path, code, says) -> None:
    made = release(guest(tmp_path / "guest", modeling=f"{code}\n{MODELING}"), tmp_path)
    with pytest.raises(StageError, match=says) as caught:
        trace(made, trust=Limits(seconds=8, memory=4 << 30))
    assert "guest" in caught.value.message and caught.value.hint


def test_code_that_wants_the_network_or_other_folders_is_refused(tmp_path) -> None:
    outside = tmp_path / "outside"
    for code in ("import socket; socket.create_connection(('127.0.0.1', 9))", f"open({str(outside)!r}, 'w')"):
        made = release(guest(tmp_path / "guest", modeling=f"{code}\n{MODELING}"), tmp_path)
        with pytest.raises((NotPossible, StageError), match=r"ermission|ermitted"):
            trace(made, trust=LIMITS)
    assert not outside.exists()


@pytest.mark.slow
def test_what_code_prints_disturbs_nothing(tmp_path) -> None:
    noise = "import sys; print('{}' * 1000); sys.stderr.write('x' * 10_000_000); print('\\x1b[31m')"
    made = release(guest(tmp_path / "guest", modeling=f"{noise}\n{MODELING}"), tmp_path)
    assert trace(made, trust=LIMITS).parameters == PARAMETERS


@pytest.mark.slow
def test_code_that_asks_positions_for_the_length_of_a_mask_is_given_one(tmp_path) -> None:
    asks = """
        cached = cache.get_seq_length()
        mask = kwargs.get("attention_mask")
        last = torch.arange(cached, cached + input_ids.shape[1], device=input_ids.device)[-1]
        length = mask.shape[-1] if mask is not None else int(last) + 1
        torch.zeros(length, device=input_ids.device).view(cached + input_ids.shape[1])
"""
    after = "else DynamicCache.from_legacy_cache()\n"
    modeling = MODELING.replace(after, after + asks.lstrip("\n"))
    assert modeling != MODELING
    graph = trace(release(guest(tmp_path / "guest", modeling=modeling), tmp_path), tokens=12, context=5, trust=LIMITS)
    assert "given a mask" in graph.source and set(graph.phases) == {"prefill", "decode"}
    plain = trace(release(guest(tmp_path / "plain"), tmp_path), tokens=12, context=5, trust=LIMITS)
    assert "given a mask" not in plain.source
    assert {phase.flops for phase in graph.phases.values()} == {phase.flops for phase in plain.phases.values()}


@pytest.mark.slow
def test_files_that_are_links_into_a_cache_are_read(tmp_path) -> None:
    made = release(guest(tmp_path / "guest"), tmp_path)
    file, blob = tmp_path / "guest" / "modeling_guest.py", tmp_path / "blob"
    file.rename(blob)
    file.symlink_to(blob)
    assert trace(made, trust=LIMITS).parameters == PARAMETERS


UNKNOWN = "from fla.ops.unknown import mystery_kernel"
"""A function of a kernel library that no stand-in is known for."""


@pytest.mark.slow
@pytest.mark.parametrize(("condition", "phases"), [("True", set()), ("new == 1", {"prefill"})])
def test_a_kernel_without_stand_in_is_missing_with_its_call_file_and_line(tmp_path, condition, phases) -> None:
    before = "        x = x + self.o_proj("
    modeling = MODELING.replace(before, f"        mixed = mystery_kernel(q, k) if {condition} else mixed\n{before}", 1)
    modeling = f"{UNKNOWN}\n{modeling}"
    line = next(number for number, text in enumerate(modeling.splitlines(), 1) if "mystery_kernel(q" in text)
    graph = trace(release(guest(tmp_path / "guest", modeling=modeling), tmp_path), tokens=12, context=5, trust=LIMITS)
    assert graph.missing == (f"fla.ops.unknown:mystery_kernel at modeling_guest.py:{line}",)
    assert set(graph.phases) == phases == {call.phase for call in graph.operators}
    assert graph.parameters == PARAMETERS and graph.modules and graph.layer_kinds


@pytest.mark.slow
def test_calls_of_stand_ins_are_counted_in_modules_that_were_left_out_too(tmp_path) -> None:
    before = "return self.down_proj("
    modeling = MODELING.replace(before, f"x = l2norm(x)\n        {before}", 1)
    modeling = f"from fla.modules.l2norm import l2norm\n{modeling}"
    made = release(guest(tmp_path / "guest", modeling=modeling), tmp_path)
    graph = trace(made, tokens=12, context=5, trust=LIMITS)  # that of 5 tokens fills the cache and counts for nothing
    [one] = graph.stand_ins
    assert one.call == "fla.modules.l2norm:l2norm" and one.times == 2 * LAYERS * EXPERTS
