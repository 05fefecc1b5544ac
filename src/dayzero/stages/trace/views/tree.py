"""The call tree for the terminal."""

from __future__ import annotations

from rich.text import Text
from rich.tree import Tree

from dayzero.graphs import Branch, module_tree
from dayzero.schema import OpGraph
from dayzero.units import format_bytes, format_count, format_flops


def call_tree(graph: OpGraph, depth: int = 4) -> Tree:
    """The modules down to a depth, with parameters and the cost in each phase; siblings that are alike are shown once
    with their number."""
    root = module_tree(graph)
    return _drawn(root, depth) if root else Tree(Text("no modules"))


def _drawn(branch: Branch, left: int) -> Tree:
    tree = Tree(_label(branch))
    for child in branch.children if left else ():
        tree.add(_drawn(child, left - 1))
    return tree


def _label(branch: Branch) -> Text:
    name = branch.name
    if branch.number > 1:
        span = name if name == branch.last else f"{name}..{branch.last}"
        name = f"{span} ({branch.number} alike, each)"
    parts = [f"{branch.type}{f' ({branch.note})' if branch.note else ''}"]
    if branch.parameters:
        parts.append(f"{format_count(branch.parameters)} parameters")
    for phase, (flops, size) in branch.cost.items():
        if flops or size:
            parts.append(f"{phase} {format_flops(flops) if flops else format_bytes(size)}")
    return Text.assemble((f"{name}: ", "bold"), " · ".join(parts))
