"""What people and programs see of a graph."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from dayzero.schema import LayerKind, ModuleNode, OpCall, OpGraph, Phase
from dayzero.stages.trace import call_tree, hot_spots, operators_table, overview, to_contract
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


def test_hot_spots_take_equal_calls_of_all_layers_together(graph: OpGraph) -> None:
    first, second = hot_spots(graph, "prefill")
    assert (first.module, first.count, first.flops, first.bytes) == ("text.layers.*", 4, 20, 8)
    assert (second.module, second.flops) == ("head", 15)  # nothing without operations, nothing of decode
    assert [spot.bytes for spot in hot_spots(graph, "prefill", by="bytes")] == [90, 8, 1]
    assert len(hot_spots(graph, "prefill", top=1)) == 1


def shown(what: object) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(what)
    return console.export_text()


def test_tables_and_trees_show_names_as_they_are(graph: OpGraph) -> None:
    table = shown(operators_table(graph, "prefill", by="bytes"))
    assert "text.layers.*.[red]odd" in table and "1x2, scalar -> 1x3" in table and "90.0" in table
    tree = shown(call_tree(graph))
    assert "[red]odd" in tree and "20 parameters" in tree and "tower" in tree
    everything = shown(overview(graph))
    assert "prefill: batch 1" in everything and "2 x a + b" in everything and "missing: aten.x" in everything
    assert "layers" not in shown(call_tree(graph, depth=1))


def test_siblings_that_are_alike_are_shown_once(graph: OpGraph) -> None:
    alike = tuple(node for node in graph.modules if "odd" not in node.path)
    calls = tuple(item for item in graph.operators if "odd" not in item.module)
    assert "0..1 (2 alike, each)" in shown(call_tree(msgspec.structs.replace(graph, modules=alike, operators=calls)))


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
    assert msgspec.json.decode(msgspec.json.encode(made))["layer_kinds"] == [{"kind": "a + b", "layers": [0, 1]}]


def test_split_missing_is_the_inverse_of_missing() -> None:
    from dayzero.stages.trace.capture import missing

    assert split_missing(missing("decode (a at b: c)", "x/y.py", 3)) == {
        "call": "decode (a at b: c)", "file": "x/y.py", "line": 3}
