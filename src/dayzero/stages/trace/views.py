"""What people and programs see of a graph: hot spots, tables for the terminal, and the JSON of `dayzero trace`.

Text from releases is never read as markup.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from dayzero.schema import ModuleNode, OpCall, OpGraph
from dayzero.schema.graph import PhaseName
from dayzero.units import format_bytes, format_count, format_flops


def hot_spots(graph: OpGraph, phase: PhaseName, top: int = 10, by: Literal["flops", "bytes"] = "flops") -> list[OpCall]:
    """The calls of a phase that cost most, dearest first; equal calls of different modules together."""
    costly = [call for call in graph.grouped() if call.phase == phase and getattr(call, by)]
    return sorted(costly, key=lambda call: getattr(call, by), reverse=True)[:top]


def operators_table(graph: OpGraph, phase: PhaseName, top: int = 10, by: Literal["flops", "bytes"] = "flops") -> Table:
    """The hot spots of a phase, for the terminal."""
    totals = graph.phases[phase]
    whole = max(getattr(totals, by), 1)
    title = (f"{phase}: batch {totals.batch}, {totals.tokens} new tokens, {totals.context} in the cache; "
             f"{format_flops(totals.flops)}, {format_bytes(totals.bytes)}, {totals.operators:,} operator calls")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("module, operator and shapes", overflow="fold")
    table.add_column("kind", no_wrap=True)
    for name in ("calls", "flops", "bytes", f"% {by}"):
        table.add_column(name, justify="right", no_wrap=True)
    for call in hot_spots(graph, phase, top, by):
        what = Text.assemble(call.module or "(model)", "\n", (f"{call.op} {call.shapes}", "dim"))
        cells = (call.kind, f"{call.count:,}", format_flops(call.flops), format_bytes(call.bytes),
                 f"{100 * getattr(call, by) / whole:.1f}")
        table.add_row(what, *map(Text, cells))
    return table


def overview(graph: OpGraph, top: int = 10) -> Group:
    """What `dayzero trace` prints: what was traced, the module tree, hot spots, and where values were assumed."""
    kinds = ", ".join(f"{len(kind.layers)} x {kind.kind}" for kind in graph.layer_kinds)
    lines = [f"{graph.source}: {format_count(graph.parameters)} parameters, layers: {kinds}"]
    lines += [f"assumed {site.assumed} for {site.kind} at {site.file}:{site.line} ({site.times} times)"
              for site in graph.control_flow]
    lines += [f"missing: {entry}" for entry in graph.missing]
    tables = (operators_table(graph, phase.name, top) for phase in graph.phases.values())
    return Group(call_tree(graph), *tables, *map(Text, lines))


def call_tree(graph: OpGraph, depth: int = 4) -> Tree:
    """The modules down to a depth, with parameters and the operations of each phase; siblings that are alike in both
    are shown once with their number."""
    totals = _subtree_totals(graph)
    children: dict[str, list[ModuleNode]] = {}
    for node in graph.modules[1:]:
        children.setdefault(node.path.rpartition(".")[0], []).append(node)

    def add(tree: Tree, path: str, left: int) -> None:
        groups: dict[tuple[str, tuple[int, ...]], list[ModuleNode]] = {}
        for node in children.get(path, []) if left else []:
            name = node.path.rpartition(".")[2]
            alike = node.type if name.isdigit() else f"{node.type} {name}"
            groups.setdefault((alike, tuple(totals[node.path].values())), []).append(node)
        for nodes in groups.values():
            add(tree.add(_label(nodes, totals[nodes[0].path])), nodes[0].path, left - 1)

    root = graph.modules[0]
    tree = Tree(_label([root], totals[""]))
    add(tree, "", depth)
    return tree


def _label(nodes: list[ModuleNode], totals: dict[str, int]) -> Text:
    names = [node.path.rpartition(".")[2] or "model" for node in nodes]
    name = names[0] if len(names) == 1 else f"{names[0]}..{names[-1]} ({len(names)} alike, each)"
    costs = [f"{phase} {format_flops(count)}" for phase, count in totals.items() if phase != "parameters" and count]
    return Text(" · ".join([f"{name}: {nodes[0].type}", f"{format_count(totals['parameters'])} parameters", *costs]))


def _subtree_totals(graph: OpGraph) -> dict[str, dict[str, int]]:
    """Parameters, and operations of each phase, of every module with all that it contains."""
    zero = {"parameters": 0, **dict.fromkeys(graph.phases, 0)}
    totals = {node.path: dict(zero) for node in graph.modules}
    costs = [(node.path, "parameters", node.parameters) for node in graph.modules]
    costs += [(call.module, call.phase, call.flops) for call in graph.operators]
    for path, key, amount in costs:
        while True:
            totals[path][key] += amount
            if not path:
                break
            path = path.rpartition(".")[0]
    return totals


def text_parameters(graph: OpGraph) -> int:
    """Parameters without those of towers: all that lies beside the largest list of layers that ran, and whatever else
    ran on text alone."""
    ran = {call.module for call in graph.operators}
    totals = _subtree_totals(graph)
    lists = [node.path for node in graph.modules if node.type == "ModuleList"
             and any(path.startswith(f"{node.path}.") for path in ran)]
    if not lists:
        return graph.parameters
    text = max(lists, key=lambda path: totals[path]["parameters"]).rpartition(".")[0]
    return sum(node.parameters for node in graph.modules
               if not text or node.path == text or node.path.startswith(f"{text}.") or node.path in ran)


def split_missing(entry: str) -> dict[str, str | int]:
    """`call at file:line` -> its three parts."""
    call, _, site = entry.rpartition(" at ")
    file, _, line = site.rpartition(":")
    return {"call": call, "file": file, "line": int(line)}


def to_contract(graph: OpGraph) -> dict[str, Any]:
    """What `dayzero trace --json` prints: plain lists, dicts, numbers and strings."""
    return {
        "parameters": graph.parameters,
        "parameters_text": text_parameters(graph),
        "seconds": graph.seconds,
        "source": graph.source,
        "phases": msgspec.to_builtins(graph.phases),
        "operators": msgspec.to_builtins(graph.operators),
        "control_flow": msgspec.to_builtins(graph.control_flow),
        "missing": [split_missing(entry) for entry in graph.missing],
        "layer_kinds": msgspec.to_builtins(graph.layer_kinds),
    }
