"""Views of a graph against figures that follow from how it was made."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.graphs import DEVICE, call, empty_graph, formula_graph, layered_graph

from dayzero.graphs import balance, bound_seconds, by_kind, items, layer_list, module_tree, phases, spots
from dayzero.graphs.items import general, layer_of
from dayzero.schema import Device, ModuleNode


def test_phases_are_in_running_order_whatever_the_file_says() -> None:
    assert [phase.name for phase in phases(layered_graph())] == ["prefill", "decode"]


def test_equal_calls_of_all_layers_are_one_row() -> None:
    rows = items(layered_graph(), "prefill")
    assert [(row.module, row.count, row.flops, row.bytes) for row in rows] == [
        ("m.layers.{L}.attn", 6, 300, 12), ("m.layers.{L}.[red]odd", 2, 0, 90), ("head", 2, 60, 6)]
    assert rows[0].intensity == 25 and rows[0].detail == "1x2, scalar -> 1x3"


def test_operations_take_the_place_of_calls_where_there_are_any() -> None:
    graph = layered_graph(operations=True)
    first, *_ = items(graph, "prefill")
    assert (first.name, first.count, first.flops) == ("attention (full)", 3, 300)
    assert first.detail == "tokens batch*tokens, heads 2" and first.calls == {"aten.mm": 6}
    assert items(graph, "decode")[0].op == "aten.mm"  # of which none were grouped


@pytest.mark.parametrize("operations", [False, True])
def test_one_layer_of_each_kind(operations: bool) -> None:
    full, sliding, outside = by_kind(layered_graph(operations), "prefill")
    assert (full.layers, full.flops, full.bytes) == (2, 100, 4)
    assert (sliding.layers, sliding.flops, sliding.bytes) == (1, 100, 94)
    assert outside.kind is None and outside.flops == 60
    assert sum(cost.layers * cost.flops for cost in (full, sliding, outside)) == 360


def test_a_phase_without_rows_has_no_cost() -> None:
    assert by_kind(empty_graph(), "decode") == () and items(empty_graph(), "prefill") == ()
    assert module_tree(empty_graph()) is None and spots(empty_graph(), "prefill") == ()


def test_spots_are_shares_of_what_is_ranked_by() -> None:
    graph = layered_graph()
    assert [(spot.item.module, spot.share) for spot in spots(graph, "prefill")] == [
        ("m.layers.{L}.attn", 300 / 360), ("head", 60 / 360)]
    assert spots(graph, "prefill", "bytes", top=1)[0].item.bytes == 90
    first, second, third = spots(graph, "prefill", "time", DEVICE)
    assert (first.seconds, first.bound) == (0.9, "memory")  # 90 bytes at 100 a second, no operations
    assert (second.seconds, second.bound) == (0.3, "compute")  # 25 operations for each byte, balance 10
    assert (third.seconds, third.bound) == (0.06, "memory")  # exactly at the balance


def test_without_a_rate_there_is_no_bound() -> None:
    bare = Device(name="d", vendor="", arch="", memory_bytes=1, memory_bandwidth=10.0, flops={})
    assert bound_seconds(5, 5, "bf16", bare) is None and bound_seconds(0, 5, "bf16", bare) == 0.5
    assert balance(bare, "bf16") is None and balance(DEVICE, "bf16") == 10
    assert [spot.bound for spot in spots(layered_graph(), "decode", "flops", bare)] == [""]


def test_zero_operations_give_no_shares() -> None:
    graph = msgspec.structs.replace(layered_graph(), operators=(call("head", flops=0, size=0),))
    assert spots(graph, "prefill") == () and spots(graph, "prefill", "time", DEVICE) == ()
    assert items(graph, "prefill")[0].intensity is None


def test_the_list_of_layers_is_the_one_that_costs_most() -> None:
    graph = layered_graph()
    tower = tuple(ModuleNode(path=f"t.blocks.{index}", type="M", parameters=1) for index in range(4))
    assert layer_list(msgspec.structs.replace(graph, modules=(*tower, *graph.modules))) == "m.layers"
    assert layer_list(msgspec.structs.replace(graph, modules=graph.modules[:5])) is None  # layers 1 and 2 are not there


def test_a_graph_without_code_has_layers_and_costs() -> None:
    graph = formula_graph()
    assert layer_list(graph) == "m.layers" and module_tree(graph) is None
    assert [cost.flops for cost in by_kind(graph, "prefill")] == [100, 100, 60]
    assert items(graph, "decode") == () and spots(graph, "prefill")[0].item.op == "attention"


def test_paths_in_general() -> None:
    assert general("m.layers.12.experts.3.w", "m.layers") == "m.layers.{L}.experts.*.w"
    assert general("m.layers.12.experts.3.w", None) == "m.layers.*.experts.*.w"
    assert general("t.1.x", "m.layers") == "t.*.x" and general("", "m.layers") == ""
    assert layer_of("m.layers.12.x", "m.layers") == 12 and layer_of("m.layersx.1", "m.layers") is None
    assert layer_of("7.attn", "") == 7 and general("7.attn", "") == "{L}.attn"


def test_the_tree_shows_alike_layers_once_and_others_apart() -> None:
    root = module_tree(layered_graph())
    assert root is not None
    assert root.parameters == 15 and root.cost == {"prefill": (360, 108), "decode": (9, 3)}
    layers = root.children[0].children[0]
    assert [(each.name, each.last, each.number, each.note, each.parameters, each.cost["prefill"])
            for each in layers.children] == [("0", "2", 2, "full", 5, (100, 4)), ("1", "1", 1, "sliding", 5, (100, 94))]


def test_modules_written_once_for_many_count_as_many() -> None:
    """`*` in a path: 4 experts of one layer, with 8 parameters and 40 operations together."""
    nodes = (ModuleNode(path="", type="M", parameters=0), ModuleNode(path="e", type="L", parameters=0),
             ModuleNode(path="e.*", type="E", parameters=0, count=4),
             ModuleNode(path="e.*.w", type="W", parameters=8, count=4))
    graph = msgspec.structs.replace(layered_graph(), modules=nodes, operators=(call("e.*.w", flops=40, size=8),
                                                                               call("e.*.gone", flops=4, size=0)))
    root = module_tree(graph)
    assert root is not None and root.parameters == 8 and root.cost["prefill"] == (44, 8)
    expert = root.children[0].children[0]
    assert (expert.number, expert.parameters, expert.cost["prefill"]) == (4, 2, (11, 2))  # with what the tree lacks
    assert (expert.children[0].number, expert.children[0].cost["prefill"]) == (1, (10, 2))
