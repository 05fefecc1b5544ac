"""What the terminal shows of a graph."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console
from tests.support.graphs import DEVICE, call, empty_graph, formula_graph, layered_graph

from dayzero.schema import OpGraph
from dayzero.stages.trace import VIEWS, call_tree, control_flow_table, kind_tables, operators_table, overview
from dayzero.stages.trace.views.columns import flop, number, ranges, ratio, size


def shown(what: object, width: int = 200) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(what)
    return console.export_text()


def test_operators_with_cost_and_bounds() -> None:
    table = shown(operators_table(layered_graph(), "prefill", by="bytes", device=DEVICE))
    assert "{L}.[red]odd" in table and "1x2, scalar -> 1x3" in table
    assert "balance is 10 flop/B in bf16" in table
    (attention,) = [line for line in table.splitlines() if "aten.mm (linear)" in line and " 300 " in line]
    assert attention.split()[2:] == ["6", "300", "12", "25", "300", "ms", "flop", "11.1"]
    assert "at least" not in shown(operators_table(layered_graph(), "prefill"))


def test_one_layer_of_each_kind_and_how_many() -> None:
    told = shown(kind_tables(layered_graph(), "prefill"))
    assert "one layer of 2 x full (0, 2): 100 FLOP, 4 B, 55.6 % of prefill" in told
    assert "in no layer: 60 FLOP, 6 B, 16.7 % of prefill" in told
    assert "and 1 more" in shown(kind_tables(layered_graph(), "prefill", top=1))


def test_the_tree_stops_at_a_depth_and_shows_names_as_they_are() -> None:
    tree = shown(call_tree(layered_graph()))
    assert "0..2 (2 alike, each): M (full) · 5 parameters · prefill 100 FLOP" in tree and "[red]odd" in tree
    assert "attn" not in shown(call_tree(layered_graph(), depth=2))
    assert "no modules" in shown(call_tree(empty_graph()))


def test_control_flow_that_ran_comes_first() -> None:
    told = shown(control_flow_table(layered_graph()))
    assert "1 places ran, 1 only in the source" in told and told.index("a.py:3") < told.index("b.py:9")
    assert "and 1 more" in shown(control_flow_table(layered_graph(), top=1))
    assert "nothing asks" in shown(control_flow_table(empty_graph()))


def test_what_is_missing_comes_first_then_what_was_replaced() -> None:
    told = shown(overview(layered_graph(operations=True)))
    order = ["own made.M", "missing: aten.x (why at all) at a/b.py:12", "stand-in: delta for fla.ops.chunk (3 times)",
             "supplied: a.b -> c", "no network", "axes hold at the traced sizes only: m.layers.{L}.[red]odd",
             "15 parameters", "phases", "2 x full", "prefill: operators by flops", "decode: operators", "a.py:3"]
    places = [told.index(part) for part in order]
    assert places == sorted(places)
    assert "layers that did not run make the same calls: same structure" in told


def test_where_no_code_ran_nothing_says_that_it_did() -> None:
    told = shown(overview(formula_graph()))
    assert "no code ran, " in told and "no code ran: by the operators' definitions" in told
    assert "operator calls" not in told and "counted call by call" not in told
    (kinds,) = [line for line in told.splitlines() if " x full" in line]
    assert " none " in kinds and " all " not in kinds


def test_it_is_told_whose_code_ran_confined() -> None:
    assert "the release's own code ran with: no network" in shown(overview(layered_graph()))
    other = msgspec.structs.replace(layered_graph(), source="a library's class")
    assert "the library's code ran with: no network" in shown(overview(other))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("made", [layered_graph(), layered_graph(operations=True), formula_graph(), empty_graph()])
def test_all_views_fit_the_terminal(made: OpGraph, width: int) -> None:
    for device in (None, DEVICE):
        told = shown(overview(made, views=VIEWS, device=device), width)
        assert max(map(len, told.splitlines())) <= width
    assert "no phase could be traced" in shown(overview(empty_graph()))


def test_a_phase_of_nothing_but_views() -> None:
    graph = msgspec.structs.replace(layered_graph(), operators=(call("head", flops=0, size=0),))
    assert "prefill: operators by flops" in shown(overview(graph, views=("operators", "kinds")))


def test_figures_as_text() -> None:
    assert [flop(0), flop(383.9e12), flop(999.9e9), flop(7)] == ["", "384 T", "1 T", "7"]
    assert [size(2**30 * 852), size(1536), size(0)] == ["852 Gi", "1.5 Ki", ""]
    assert [number(3.0000000001), number(2.25)] == ["3", "2.2"]
    assert [ratio(None), ratio(0.126), ratio(2048.4)] == ["", "0.13", "2,048"]
    assert ranges((3, 4, 5, 0)) == "0, 3-5"
    assert ranges(range(3, 92, 4)) == "3-91 by 4"
    assert ranges((0, 2, 4, 5, 9)) == "0, 2, 4-5, 9"
    assert ranges([index for index in range(40) if index % 4]) == "1-3, 5-7, 9-11, ..., 37-39"


def test_the_least_time_of_a_phase_says_where_it_knows_less() -> None:
    assert "> 1.08 s" not in shown(overview(layered_graph(), device=DEVICE))
    bare = msgspec.structs.replace(DEVICE, flops={})  # 108 bytes at 100 a second, and no word about the operations
    assert "> 1.08 s" in shown(overview(layered_graph(), device=bare))
    little = tuple(msgspec.structs.replace(each, dtype="i64", flops=1) if each.op == "aten.add" else
                   msgspec.structs.replace(each, flops=each.flops * 10**6) for each in layered_graph().operators)
    told = shown(overview(msgspec.structs.replace(layered_graph(), operators=little), device=DEVICE))
    assert "no rate" in told and "> " not in next(line for line in told.splitlines() if line.startswith("prefill   "))
