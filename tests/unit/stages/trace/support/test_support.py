"""Coverage: what torch registers and declares, what really runs, and what a backend says of itself."""

from __future__ import annotations

import io
from collections.abc import Mapping

import msgspec
import pytest
from rich.console import Console
from tests.support.graphs import call, layered_graph

from dayzero.backends import TorchBackend, backends
from dayzero.errors import UsageError
from dayzero.registry import Registry
from dayzero.schema import OpGraph
from dayzero.schema.graph import StandIn
from dayzero.stages.trace import operator_support, support_tables
from dayzero.stages.trace.support import Support
from dayzero.stages.trace.support.trial import Case

pytest.importorskip("torch")


def graph(*calls: tuple[str, str, tuple[tuple[int, ...], ...], tuple[int, ...]]) -> OpGraph:
    rows = tuple(call("m", op=op, dtype=dtype, inputs=inputs, outputs=(output,)) for op, dtype, inputs, output in calls)
    return msgspec.structs.replace(layered_graph(), operators=rows, stand_ins=(
        StandIn(call="somelib.chunk", op="delta_rule", times=1),))


PRODUCT = ("aten.mm", "bf16", ((100, 200), (200, 300)), (100, 300))
COUNTS = ("aten.histc", "i32", ((4096,),), (64,))
CLONE = ("aten.clone", "f32", ((7, 5),), (7, 5))
OURS = ("dayzero.delta_rule", "bf16", ((1, 2),), (1, 2))
NOBODY = ("nobody.thing", "bf16", ((1, 2),), (1, 2))
ADDED = ("aten.add", "bf16", ((9, 5), (9, 5)), (9, 5))
RELU = ("aten.relu", "f32", ((9, 5),), (9, 5))


def by_op(rows: tuple[Support, ...]) -> dict[str, Support]:
    return {row.op: row for row in rows}


@pytest.mark.slow
def test_the_processor_is_looked_up_and_tried() -> None:
    rows = by_op(operator_support(graph(PRODUCT, COUNTS, CLONE, OURS, NOBODY), ["cpu"]))
    assert (rows["aten.mm"].status, rows["aten.mm"].tried, rows["aten.mm"].count) == ("native", "works", 2)
    assert (rows["aten.clone"].status, rows["aten.clone"].tried) == ("composite", "works")
    # registered, but torch's kernel for the processor has no integers: transformers avoids it there for that reason
    assert (rows["aten.histc"].status, rows["aten.histc"].tried) == ("none", "fails")
    assert "not implemented for 'Int'" in rows["aten.histc"].how
    assert (rows["dayzero.delta_rule"].status, rows["dayzero.delta_rule"].how) == (
        "library", "stands in for somelib.chunk")
    assert rows["nobody.thing"].status == "unknown"
    loop = msgspec.structs.replace(graph(OURS), stand_ins=(
        StandIn(call="transformers.models.a.modeling_a:chunk", op="dayzero.delta_rule", times=1),))
    assert by_op(operator_support(loop, ["cpu"], trial=False))["dayzero.delta_rule"].status == "composite"


def test_the_worst_comes_first() -> None:
    rows = operator_support(graph(PRODUCT, CLONE, NOBODY, OURS), ["cpu"], trial=False)
    assert [row.status for row in rows] == ["unknown", "library", "composite", "native"]
    assert {row.tried for row in rows} == {""}


def test_a_backend_that_torch_is_built_without_is_taken_from_its_declarations() -> None:
    """native_functions.yaml of torch 2.13: mm is structured (mm.out: CPU, CUDA, MPS, MTIA ...), add has an inner loop
    for CPU and CUDA, clone is CompositeExplicitAutograd, relu is CPU, CUDA."""
    import torch

    if torch.backends.cuda.is_built():
        pytest.skip("this torch is built with CUDA")
    rows = by_op(operator_support(graph(PRODUCT, CLONE, ADDED, RELU, COUNTS), ["cuda"]))
    assert {op: row.status for op, row in rows.items()} == {
        "aten.mm": "native", "aten.clone": "composite", "aten.add": "native", "aten.relu": "native",
        "aten.histc": "native"}
    assert all("built without CUDA" in row.how and row.tried == "" for row in rows.values())


def test_unknown_backends_are_refused() -> None:
    with pytest.raises(UsageError, match="no backend is named 'cud'"):
        operator_support(graph(PRODUCT), ["cud"])
    with pytest.raises(UsageError, match="nothing says what backend 'hpu' implements"):
        operator_support(graph(PRODUCT), ["hpu"])


class Listing(TorchBackend):
    """A plug-in's backend that lists what it implements."""

    name = device_type = "fpga9"

    def available(self) -> str:
        return "no card"

    def operators(self) -> Mapping[str, tuple[str, ...]]:
        return {"aten.mm": ("bf16",), "aten.add": ()}


def test_a_backend_may_list_its_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Registry[object] = Registry("backend")
    registry.add("fpga9", Listing())
    monkeypatch.setattr("dayzero.stages.trace.support.backends", lambda: registry)
    wide = ("aten.mm", "f32", PRODUCT[2], PRODUCT[3])
    rows = operator_support(graph(PRODUCT, wide, ADDED, CLONE), ["fpga9"])
    assert {(row.op, row.dtype): row.status for row in rows} == {
        ("aten.mm", "bf16"): "native", ("aten.mm", "f32"): "none", ("aten.add", "bf16"): "native",
        ("aten.clone", "f32"): "none"}
    assert rows[-1].how == "the list of backend fpga9"


def test_the_backends_that_ship_have_no_list_of_their_own() -> None:
    assert not any(hasattr(backend, "operators") for backend in (backends().get("cpu"), backends().get("cuda")))


def test_a_case_that_kills_its_process_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from dayzero.stages.trace.support import trial

    lines = {3: b'{"index":0,"result":"works"}\n{"index":1,"result":"started"}\nSegm',
             1: b'{"index":0,"result":"works"}\nnoise\n'}
    seen = []

    class Done:
        def __init__(self, count: int) -> None:
            self.stdout, self.returncode = lines[count], -11 if count == 3 else 0

    def run(arguments: list[str], *, input: bytes, **_: object) -> Done:
        cases = msgspec.json.decode(input)
        seen.append([case["op"] for case in cases])
        return Done(len(cases))

    monkeypatch.setattr(trial.subprocess, "run", run)
    cases = [Case(op=name, dtype="f32", kind=kind, inputs=(), outputs=())
             for name, kind in (("a", ""), ("b", ""), ("v", "view"), ("c", ""))]
    results = trial.try_all(cases, "cpu")
    assert {case.op: result for case, result in results.items()} == {"a": "works", "c": "works"}
    assert seen == [["a", "b", "c"], ["c"]]


def test_small_lengths_keep_equal_ones_equal() -> None:
    from dayzero.stages.trace.support.child import attempt, small_lengths

    case = Case(op="aten.mm", dtype="bf16", kind="linear", inputs=((4096, 7168), (7168, 3)), outputs=((4096, 3),))
    lengths = small_lengths(case)
    assert [lengths[each] for each in (3, 4096, 7168)] == [3, 8, 16]
    assert attempt(case, "cpu") == "works"
    assert attempt(msgspec.structs.replace(case, dtype="bits8"), "cpu") != "works"
    assert attempt(msgspec.structs.replace(case, dtype="no_such_dtype"), "cpu") == ""


@pytest.mark.parametrize("width", [80, 120])
def test_the_table(width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    rows = operator_support(graph(PRODUCT, CLONE, NOBODY, OURS), ["cpu", "cuda"], trial=False)
    console.print(support_tables(rows, 1))
    told = console.export_text()
    assert "nobody.thing" in told and "composite: torch's own code for any device" in told.replace("\n", " ")
    assert "and 3 more" in told and max(map(len, told.splitlines())) <= width


def test_without_calls_there_is_nothing_to_look_up() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(support_tables(operator_support(graph(), ["cpu"])))
    assert "no operator calls" in console.export_text()
