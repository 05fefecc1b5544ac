"""The call tree: modules with what they cost, those that are alike once."""

from __future__ import annotations

from collections import defaultdict

from dayzero.schema import ModuleNode, Noun, OpGraph

from .items import layer_list, phases

Totals = dict[str, tuple[int, int]]


class Branch(Noun, frozen=True, kw_only=True):
    """A module with all that it contains, or several that are alike in everything shown."""

    name: str
    """Last part of its path, or of the first of them: `model` for the root."""
    last: str
    """Last part of the path of the last of them; the same where it is one."""
    number: int
    """How many are alike."""
    path: str
    """Dotted path of the first."""
    type: str
    """Class name."""
    note: str
    """Kind of the layer, where it is one."""
    parameters: int
    """Of one of them."""
    cost: dict[str, tuple[int, int]]
    """Phase -> (flops, bytes) of one of them."""
    children: tuple[Branch, ...]
    """What it contains."""


def module_tree(graph: OpGraph) -> Branch | None:
    """The whole tree; None without modules."""
    if not graph.modules:
        return None
    return _Builder(graph).branch([graph.modules[0]], 1)


class _Builder:
    def __init__(self, graph: OpGraph) -> None:
        self.parameters, self.costs = _totals(graph)
        self.phases = tuple(phase.name for phase in phases(graph))
        self.children: dict[str, list[ModuleNode]] = defaultdict(list)
        for node in graph.modules[1:]:
            self.children[node.path.rpartition(".")[0]].append(node)
        layers = layer_list(graph)
        prefix = f"{layers}." if layers else ""
        self.notes = {f"{prefix}{index}": kind.kind for kind in graph.layer_kinds for index in kind.layers
                      } if layers is not None else {}

    def branch(self, alike: list[ModuleNode], within: int) -> Branch:
        """The branch of modules that are alike; `within`: as many modules contain them."""
        first, last = alike[0], alike[-1]
        groups: dict[object, list[ModuleNode]] = defaultdict(list)
        for node in self.children.get(first.path, ()):
            groups[self._key(node)].append(node)
        number = max(1, sum(node.count for node in alike) // within)
        return Branch(
            name=first.path.rpartition(".")[2] or "model", last=last.path.rpartition(".")[2] or "model", number=number,
            path=first.path, type=first.type, note=self.notes.get(first.path, ""),
            parameters=self.parameters[first.path] // first.count,
            cost={phase: _each(self.costs[first.path].get(phase, (0, 0)), first.count) for phase in self.phases},
            children=tuple(self.branch(nodes, first.count) for nodes in groups.values()))

    def _key(self, node: ModuleNode) -> object:
        """Numbered siblings of one class, kind, size and cost are alike; others only with themselves."""
        name = node.path.rpartition(".")[2]
        costs = tuple(self.costs[node.path].get(phase) for phase in self.phases)
        return (None if name.isdecimal() else name, node.type, self.parameters[node.path], costs,
                self.notes.get(node.path))


def _each(cost: tuple[int, int], count: int) -> tuple[int, int]:
    return cost[0] // count, cost[1] // count


def _totals(graph: OpGraph) -> tuple[dict[str, int], dict[str, Totals]]:
    """Parameters, and (flops, bytes) of each phase, of every module with all that it contains. A call of a module that
    the tree does not have counts for the nearest one above."""
    parameters = {node.path: 0 for node in graph.modules}
    costs: dict[str, Totals] = {node.path: {} for node in graph.modules}
    for node in graph.modules:
        for path in _upwards(node.path):
            if path in parameters:
                parameters[path] += node.parameters
    own: dict[tuple[str, str], list[int]] = {}
    for call in graph.operators:
        total = own.setdefault((call.module, call.phase), [0, 0])
        total[0] += call.flops
        total[1] += call.bytes
    for (module, phase), (flops, size) in own.items():
        for path in _upwards(module):
            if path in costs:
                before = costs[path].get(phase, (0, 0))
                costs[path][phase] = (before[0] + flops, before[1] + size)
    return parameters, costs


def _upwards(path: str) -> list[str]:
    """The path, those above it, and the root."""
    paths = [path]
    while path:
        path = path.rpartition(".")[0]
        paths.append(path)
    return paths
