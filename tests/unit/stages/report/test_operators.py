"""The trace on the page: rows, bounds and hot spots, layer kinds, the tree, areas."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.support.graphs import empty_graph, formula_graph, layered_graph
from tests.support.results import local_target, small_graph

from dayzero.schema import OpGraph
from dayzero.stages.report import modules
from dayzero.stages.report.operators import MOST_SINGLE, hot_spots, kind_rows, levels, rows, table_data, tree_data

DEVICE = local_target().cluster.device


def test_equal_layers_become_one_row_and_nothing_is_lost() -> None:
    graph = small_graph(layers=30)
    grouped, single = rows(graph, DEVICE, "grouped"), rows(graph, DEVICE, "single")
    assert len(single) == 2 * (30 * 10 + 1)
    assert len(grouped) == 2 * (10 + 1)
    for field in ("calls", "flops", "bytes", "seconds"):
        total = sum(getattr(row, field) for row in single)
        assert sum(getattr(row, field) for row in grouped) == pytest.approx(total)
    gate = next(row for row in grouped if row.module == "model.layers.*.mlp.gate_proj" and row.phase == "prefill")
    assert gate.calls == 30
    assert gate.flops == 30 * 2 * 64 * 1536 * 576
    assert gate.shapes == "1x64x576, 1536x576 -> 1x64x1536"


def test_levels_are_those_that_have_rows_and_fit() -> None:
    assert levels(layered_graph()) == ("grouped", "single")
    assert levels(layered_graph(operations=True)) == ("operations", "grouped", "single")
    assert levels(formula_graph()) == ("operations",)
    large = msgspec.structs.replace(layered_graph(), operators=layered_graph().operators * MOST_SINGLE)
    assert levels(large) == ("grouped",)
    operations = rows(layered_graph(operations=True), DEVICE, "operations")
    assert [(row.op, row.phase) for row in operations[:1]] == [("attention", "prefill")]
    assert rows(layered_graph(operations=True), DEVICE, "grouped")[0].op == "aten.mm"


def test_bound_is_the_longer_of_compute_and_memory() -> None:
    single = rows(small_graph(1), DEVICE, "single")
    prefill = next(row for row in single if row.module.endswith("gate_proj") and row.phase == "prefill")
    decode = next(row for row in single if row.module.endswith("gate_proj") and row.phase == "decode")
    assert prefill.seconds == pytest.approx(prefill.flops / 4.1e10)  # bf16 rate of the device
    assert decode.seconds == pytest.approx(decode.bytes / 1.1e10)  # its memory bandwidth


def test_hot_spots_are_sorted_shares_of_their_phase() -> None:
    spots = hot_spots(small_graph(), "decode", DEVICE, top=100)
    shares = [spot.share for spot in spots]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)
    assert {spot.item.phase for spot in spots} == {"decode"}
    assert spots[0].item.module == "lm_head"
    assert hot_spots(small_graph(), "training", DEVICE) == ()


def test_without_a_rate_there_is_no_bound_and_no_hot_spot() -> None:
    device = msgspec.structs.replace(DEVICE, flops={})
    grouped = rows(small_graph(), device, "grouped")
    assert all(row.seconds is None for row in grouped if row.flops)
    assert not [spot for spot in hot_spots(small_graph(), "decode", device) if spot.item.flops]
    assert table_data(grouped)[0][-1] == ""


def test_layer_kinds_and_what_lies_outside() -> None:
    full, sliding, outside = kind_rows(layered_graph())
    assert (full.name, full.layers, full.ran, full.proof) == ("full", 2, "1", "same structure")
    assert full.costs == (("100 FLOP", "4 B"), ("0 FLOP", "0 B"))
    assert sliding.costs[0] == ("100 FLOP", "94 B")
    assert (outside.name, outside.layers, outside.costs[0]) == ("in no layer", 0, ("60 FLOP", "6 B"))
    assert kind_rows(empty_graph()) == []


def test_the_tree_for_the_page() -> None:
    tree = tree_data(layered_graph())
    assert tree is not None and tree["columns"] == [
        "Parameters", "prefill, operations", "prefill, bytes", "decode, operations", "decode, bytes"]
    name, kind, number, values, children = tree["root"][4][0][4][0][4][0]
    assert (name, kind, number) == ("0 to 2", "M (full)", 2)
    assert values == [[5, "5"], [100, "100 FLOP"], [4, "4 B"], [0, ""], [0, ""]] and len(children) == 1
    assert tree_data(empty_graph()) is None and tree_data(small_graph()) is None  # only the model itself


def test_areas_add_up() -> None:
    prefill, decode = modules.cost_charts(layered_graph())
    assert (prefill.id, decode.id) == ("modules-prefill", "modules-decode")
    (trace,) = json.loads(prefill.figure)["data"]
    areas = dict(zip(trace["ids"], trace["values"], strict=True))
    assert areas["(model)"] == 360 and areas["m.layers"] == 300 and areas["m.layers.0"] == 200  # two that are alike
    for parent in set(trace["parents"]) - {""}:
        inside = [value for value, own in zip(trace["values"], trace["parents"], strict=True) if own == parent]
        assert sum(inside) <= areas[parent]
    assert modules.cost_charts(empty_graph()) == []


def test_names_in_a_chart_are_no_markup() -> None:
    graph = layered_graph()
    evil = tuple(msgspec.structs.replace(node, path=node.path.replace("head", "<img src=x>")) for node in graph.modules)
    calls = tuple(msgspec.structs.replace(call, module=call.module.replace("head", "<img src=x>"))
                  for call in graph.operators)
    made: OpGraph = msgspec.structs.replace(graph, modules=evil, operators=calls)
    labels = json.loads(modules.cost_charts(made)[0].figure)["data"][0]["labels"]
    assert "&lt;img src=x&gt;" in labels and not any("<" in label for label in labels)
