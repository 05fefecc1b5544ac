"""A graph as JSON, and back."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.graphs import DEVICE, empty_graph, formula_graph, layered_graph

from dayzero.errors import UsageError
from dayzero.schema import LayerKind, ModuleNode, OpCall, OpGraph, Phase
from dayzero.stages.trace import from_contract, to_contract
from dayzero.stages.trace.views import split_missing, text_parameters


def call(module: str, op: str = "aten.mm", flops: int = 10, size: int = 4, phase: str = "prefill") -> OpCall:
    return OpCall(op=op, module=module, module_type="Linear", kind="linear", count=2, inputs=((1, 2), ()),
                  outputs=((1, 3),), dtype="bf16", flops=flops, bytes=size, phase=phase)


@pytest.fixture
def graph() -> OpGraph:
    paths = {"": 1, "tower": 0, "tower.layers": 0, "tower.layers.0": 50, "text": 0, "text.embed": 7, "text.layers": 0,
             "text.layers.0": 20, "text.layers.1": 20, "text.layers.1.[red]odd": 3, "head": 7}
    phases = {name: Phase(name=name, batch=1, tokens=2, context=0, flops=30, bytes=100, operators=6)
              for name in ("prefill", "decode")}
    calls = (call("text.layers.0"), call("text.layers.1"), call("head", flops=15, size=1),
             call("text.layers.1.[red]odd", op="aten.add", flops=0, size=90), call("head", flops=99, phase="decode"))
    return OpGraph(parameters=108, seconds=0.5, phases=phases, operators=calls, control_flow=(), source="made",
                   modules=tuple(ModuleNode(path=path, type="ModuleList" if path.endswith("layers") else "M",
                                            parameters=own) for path, own in paths.items()),
                   missing=("aten.x (why at all) at a/b.py:12",), layer_kinds=(LayerKind(kind="a + b", layers=(0, 1)),))


def test_text_parameters_leave_towers_out(graph: OpGraph) -> None:
    assert text_parameters(graph) == 7 + 20 + 20 + 3 + 7  # not the tower's 50, nor what the root holds and never ran


def test_text_parameters_of_a_model_without_an_inner_model(graph: OpGraph) -> None:
    modules = tuple(msgspec.structs.replace(node, path=node.path.removeprefix("text.")) for node in graph.modules
                    if node.path.startswith("text."))
    calls = tuple(msgspec.structs.replace(item, module=item.module.removeprefix("text.")) for item in graph.operators
                  if item.module.startswith("text."))
    root = ModuleNode(path="", type="M", parameters=1)
    assert text_parameters(msgspec.structs.replace(graph, modules=(root, *modules), operators=calls)) == 1 + 50


def test_contract(graph: OpGraph) -> None:
    made = to_contract(graph)
    assert set(made) >= {"parameters", "parameters_text", "seconds", "phases", "operators", "control_flow", "missing",
                         "layer_kinds"}
    assert made["missing"] == [{"call": "aten.x (why at all)", "file": "a/b.py", "line": 12}]
    assert made["operators"][0].keys() == {"op", "module", "module_type", "kind", "count", "inputs", "outputs", "dtype",
                                           "flops", "bytes", "phase"}
    assert {"flops", "bytes", "operators"} <= made["phases"]["decode"].keys()
    assert msgspec.json.decode(msgspec.json.encode(made))["layer_kinds"] == [
        {"kind": "a + b", "layers": [0, 1], "traced": [], "proof": ""}]


def test_split_missing_is_the_inverse_of_missing() -> None:
    from dayzero.stages.trace.capture.recorder import missing

    assert split_missing(missing("decode (a at b: c)", "x/y.py", 3)) == {
        "call": "decode (a at b: c)", "file": "x/y.py", "line": 3}


def test_hot_spots_in_the_contract() -> None:
    spots = to_contract(layered_graph(), by="time", device=DEVICE, top=1)["hot_spots"]
    assert list(spots) == ["prefill", "decode"] and len(spots["prefill"]) == 1
    assert spots["prefill"][0] == {
        "op": "aten.add", "kind": "elementwise", "module": "m.layers.{L}.[red]odd", "count": 2, "dtype": "bf16",
        "detail": "1x2, scalar -> 1x3", "flops": 0, "bytes": 90, "share": 0.9 / 1.26, "intensity": 0.0, "seconds": 0.9,
        "bound": "memory", "balance": 10.0}
    plain = to_contract(layered_graph())["hot_spots"]["prefill"][0]
    assert (plain["seconds"], plain["bound"], plain["balance"]) == (None, None, None)


@pytest.mark.parametrize("made", [layered_graph(), layered_graph(operations=True), formula_graph(), empty_graph()])
def test_a_graph_comes_back_from_its_contract(made: OpGraph) -> None:
    assert from_contract(msgspec.json.decode(msgspec.json.encode(to_contract(made)))) == made


def test_what_is_expanded_again_is_no_linear_where_no_code_ran_either() -> None:
    made = formula_graph()
    first = msgspec.structs.replace(made.operations[0], op="linear", variant="expansion")
    rows = to_contract(msgspec.structs.replace(made, operations=(first,)))["operators"]
    assert [row["kind"] for row in rows] == ["expansion"]


def test_other_json_is_no_trace() -> None:
    with pytest.raises(UsageError, match="holds no trace"):
        from_contract({"missing": [], "phases": {}})
