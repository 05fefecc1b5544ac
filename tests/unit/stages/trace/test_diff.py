"""Two graphs against each other, with differences that are known because they were put in."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console
from tests.support.graphs import call, empty_graph, layered_graph

from dayzero.schema import ControlFlow, LayerKind, OpGraph, from_json, to_json
from dayzero.stages.trace import compare, diff_tables, from_contract, to_contract

BEFORE = layered_graph()


def changed(**fields: object) -> OpGraph:
    return msgspec.structs.replace(BEFORE, **fields)


def shown(before: OpGraph, after: OpGraph, width: int = 120) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(diff_tables(compare(before, after)))
    return console.export_text()


def test_a_graph_does_not_differ_from_itself() -> None:
    again = msgspec.structs.replace(layered_graph(), seconds=99.0)
    assert compare(BEFORE, again).same
    assert "nothing differs" in shown(BEFORE, again)


def test_new_gone_and_changed_operators() -> None:
    wide = [msgspec.structs.replace(each, inputs=((1, 4),), flops=200) if "attn" in each.module else each
            for each in BEFORE.operators if each.op != "aten.add"]
    diff = compare(BEFORE, changed(operators=(*wide, call("m.[red]gate", op="aten.topk", dtype="f32", flops=0))))
    assert diff.calls.new == ("aten.topk f32",) and diff.calls.gone == ("aten.add bf16",)
    assert [(each.status, each.op, each.module) for each in diff.places] == [
        ("new", "aten.topk (linear)", "[red]gate"), ("gone", "aten.add (elementwise)", "{L}.[red]odd"),
        ("changed", "aten.mm (linear)", "{L}.attn")]
    last = diff.places[-1]
    assert last.what == ("shapes", "flops") and last.before and last.after
    assert (last.before.flops, last.after.flops) == (300, 600)
    assert [(each.op, each.status) for each in diff.operators if each.status == "changed"] == [
        ("aten.mm (linear)", "changed")]  # attention and head together: one row of the phase
    told = shown(BEFORE, changed(operators=(*wide, call("m.[red]gate", op="aten.topk", dtype="f32"))))
    assert "=>" not in told and "1x2, scalar -> 1x3" in told  # other shapes at all
    assert "+ aten.topk f32" in told and "[red]gate" in told and "-> 600" in told and "1 new, 1 gone, 1 changed" in told


def test_kinds_control_flow_parameters_and_totals() -> None:
    sites = (*BEFORE.control_flow[:1], ControlFlow(file="b.py", line=8, kind="item", assumed="0", times=2,
                                                   executed=True))
    after = changed(parameters=20, layer_kinds=(LayerKind(kind="full", layers=(0, 1, 2)),), control_flow=sites,
                    phases={"prefill": msgspec.structs.replace(BEFORE.phases["prefill"], tokens=9)}, missing=())
    diff = compare(BEFORE, after)
    assert not diff.same
    assert diff.layer_kinds.new == ("3 x full",) and diff.layer_kinds.gone == ("2 x full", "1 x sliding")
    assert diff.control_flow.new == ("item in b.py, assumed 0",)
    assert diff.control_flow.gone == ("item in b.py, only in the source",)
    assert diff.missing.gone == BEFORE.missing
    told = shown(BEFORE, after, 80)
    assert "parameters 15 -> 20 (+5" in told and "at other sizes: prefill" in told and "none" in told
    assert max(map(len, told.splitlines())) <= 80


def test_a_line_that_moved_is_no_change() -> None:
    moved = tuple(msgspec.structs.replace(site, line=site.line + 40) for site in BEFORE.control_flow)
    assert compare(BEFORE, changed(control_flow=moved)).same


def test_against_a_graph_of_nothing() -> None:
    diff = compare(empty_graph(), BEFORE)
    assert {each.status for each in (*diff.operators, *diff.places)} == {"new"}
    assert "none" in shown(empty_graph(), BEFORE) and "none" in shown(BEFORE, empty_graph())


def test_a_model_that_is_nested_deeper_has_the_same_places() -> None:
    nodes = tuple(msgspec.structs.replace(node, path=f"outer.{node.path}".rstrip(".")) for node in BEFORE.modules)
    calls = tuple(msgspec.structs.replace(each, module=f"outer.{each.module}") for each in BEFORE.operators)
    assert compare(BEFORE, changed(modules=nodes, operators=calls)).same


def test_only_the_axes_that_differ_are_shown() -> None:
    before = layered_graph(operations=True)
    first = before.operations[0]
    wider = msgspec.structs.replace(first, axes={**first.axes, "heads": 4.0})
    told = shown(before, msgspec.structs.replace(before, operations=(wider, *before.operations[1:])))
    assert "heads 2 => 4" in told and "tokens batch*tokens =>" not in told


def test_a_fresh_graph_against_itself_from_a_file() -> None:
    """Axes come in another order there, and whole numbers might be others."""
    before = layered_graph(operations=True)
    first = before.operations[0]
    axes = {"tokens": "min(tokens, 4) * batch", "heads": 2.0, "batch": 1, "item": 0.5}
    fresh = msgspec.structs.replace(before, operations=(
        msgspec.structs.replace(first, axes=axes, calls={"b": 1, "a": 2}), *before.operations[1:]))
    saved = from_json(to_json(fresh), OpGraph)
    assert compare(fresh, saved).same
    assert compare(from_contract(msgspec.json.decode(to_json(to_contract(fresh)))), fresh).same
    assert msgspec.json.encode(to_contract(fresh)) == msgspec.json.encode(to_contract(saved))
    assert saved.operations[0].axes == axes and type(saved.operations[0].axes["heads"]) is int
    wider = msgspec.structs.replace(fresh, operations=(
        msgspec.structs.replace(first, axes={**axes, "tokens": "min(tokens, 8) * batch"}), *before.operations[1:]))
    assert "tokens min(tokens, 4) * batch => min(tokens, 8) * batch" in shown(saved, wider, 200)
