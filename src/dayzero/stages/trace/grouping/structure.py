"""Which calls are one operation: those in one scope by name, and by structure what names do not say.

Structure: a product with a weight is a linear, and all else in its module with it; products around a softmax are an
attention; pointwise calls of one module in a row, also across the products of its children, are one elementwise
operation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from dayzero.data.operators import Operators
from dayzero.stages.trace.capture.captured import Call
from dayzero.stages.trace.capture.kinds import plain

from .products import read_product
from .scopes import Scope, Scopes

ALONE = ("embedding", "sampling", "conv", "experts", "state", "rotary", "norm")
"""Kinds of operators that are an operation wherever they are."""


class Key(NamedTuple):
    """What the calls of one operation have in common."""

    op: str
    """Operation, or `run`: pointwise calls and copies in a row."""
    path: str
    """Module that it is attributed to."""
    part: int | str = 0
    """Tells operations of one module apart."""


class Structure:
    """Assigns calls to operations."""

    def __init__(self, table: Operators, types: Mapping[str, str], scopes: Scopes, hidden: int) -> None:
        self._table, self._types, self._scopes, self._hidden = table, types, scopes, hidden
        self._shared: dict[tuple[str, int], int] = {}

    def collect(self, calls: Sequence[Call]) -> dict[Key, tuple[Call, ...]]:
        """Operations in the order of their first calls that do something; views go with the call before them."""
        bases = [self._table.kind(plain(call.op)) for call in calls]
        keys: list[Key | None] = [None] * len(calls)
        visits: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._shared = _shared_suffixes(calls)
        for index, call in enumerate(calls):
            if call.kind == "view":
                continue
            keys[index] = self._named(call, bases[index])
            if keys[index] is None:
                visits[call.place, call.visit].append(index)
        self._blocks(calls, bases, keys)
        for indices in visits.values():
            self._visit(calls, bases, keys, [index for index in indices if keys[index] is None])
        self._runs(calls, keys)
        return _collected(calls, keys)

    def _named(self, call: Call, base: str) -> Key | None:
        scope = self._scopes.find(call, weighted=base == "linear")
        if scope is not None:
            return _scope_key(scope, call)
        return Key(base, call.place, call.visit) if base in ALONE else None

    def _blocks(self, calls: Sequence[Call], bases: Sequence[str], keys: list[Key | None]) -> None:
        """What a block does around its experts, in its own forward: choosing them, then sending and combining rows."""
        experts = {path: key for key in dict.fromkeys(keys) if key and key.op == "experts"
                   for path in {key.path, key.path.rpartition(".")[0]} if path}
        routers = {key.path: key for key in keys if key and key.op == "router"}
        first: dict[Key, int] = {}
        chosen: dict[str, int] = {}
        for index, (call, key) in enumerate(zip(calls, keys, strict=True)):
            if key is not None and key in experts.values():
                first.setdefault(key, index)
            elif key is None and call.place in experts and experts[call.place] not in first and (
                    bases[index] == "softmax" or plain(call.op) == "aten.topk"):
                chosen[call.place] = index
        for index, call in enumerate(calls):
            if keys[index] is not None or call.kind == "view" or call.place not in experts or bases[index] == "linear":
                continue
            if index <= chosen.get(call.place, -1):
                router = next((key for path, key in routers.items() if path.rpartition(".")[0] == call.place), None)
                keys[index] = router or Key("router", call.place)
            elif not self._is_residual(call):
                keys[index] = experts[call.place]

    def _visit(self, calls: Sequence[Call], bases: Sequence[str], keys: list[Key | None], indices: list[int]) -> None:
        """One forward of one module: its products decide."""
        if not indices:
            return
        call = calls[indices[0]]
        weighted = [index for index in indices if bases[index] == "linear"]
        products = [index for index in indices if bases[index] == "matmul"]
        fused = [index for index in indices if bases[index] == "attention"]
        softmax = any(bases[index] == "softmax" for index in indices)
        if self._scopes.is_leaf(call.place) and len(weighted) + len(products) == 1 and not fused and not softmax:
            for index in indices:
                keys[index] = Key("linear", call.place, call.visit)
            return
        for index in weighted:
            keys[index] = Key("linear", call.place, index)
        if fused or (softmax and _is_attention([calls[index] for index in products])):
            self._core(calls, keys, indices, fused or products, [*fused] or [products[0]], "attention")
        elif any(calls[index].kind in ("attention", "state") for index in products) \
                and not self._scopes.is_block(call.place):
            self._core(calls, keys, indices, products, [products[0]], "state")
        else:
            for index in products:
                keys[index] = Key("matmul", call.place, index)

    def _core(self, calls: Sequence[Call], keys: list[Key | None], indices: list[int], core: list[int],
              heads: list[int], op: str) -> None:
        """The span of the core calls, and what the function that they are in does around them."""
        shared = self._shared[calls[core[0]].place, calls[core[0]].visit]
        inner = {index: _undecorated(calls[index].functions) for index in indices}
        outermost = {index: names[:len(names) - shared][-1:] for index, names in inner.items()}
        functions = {outermost[index] for index in core} - {()}
        for index in indices:
            inside = core[0] <= index <= core[-1] and len(heads) == 1
            around = outermost[index] in functions
            if keys[index] is None and (index in core or inside or around):
                head = max((one for one in heads if one <= index), default=heads[0])
                keys[index] = Key(op, calls[index].place, head)

    def _runs(self, calls: Sequence[Call], keys: list[Key | None]) -> None:
        """Pointwise calls and copies in a row; products of the module's own children may lie between them."""
        current: Key | None = None
        for index, call in enumerate(calls):
            if call.kind == "view":
                continue
            key = keys[index]
            if key is not None:
                if current and not (key.op == "linear" and key.path.startswith(f"{current.path}.")):
                    current = None
                continue
            if self._is_residual(call):
                keys[index], current = Key("residual", call.place, index), None
                continue
            path = self._owner(call)
            if current is None or current.path != path:
                current = Key("run", path, index)
            keys[index] = current

    def _owner(self, call: Call) -> str:
        """The module that a pointwise call is attributed to: a module for an activation alone belongs to its parent."""
        return call.place.rpartition(".")[0] if self._scopes.is_leaf(call.place) else call.place

    def _is_residual(self, call: Call) -> bool:
        """The addition of two tensors of the residual stream."""
        return (plain(call.op) == "aten.add" and len(call.inputs) == 2 and call.inputs[0] == call.inputs[1]
                and len(call.inputs[0]) > 1 and call.inputs[0][-1] == self._hidden
                and self._scopes.is_block(call.place))


def _is_attention(calls: Sequence[Call]) -> bool:
    """Whether the last product sums over what the first one gives a score for."""
    products = [read_product(call) for call in calls]
    if len(products) < 2 or products[0] is None or products[-1] is None:
        return False
    return products[0].outer in (products[-1].inner, products[-1].inner - 1)  # a sink is a score without a value


def _shared_suffixes(calls: Sequence[Call]) -> dict[tuple[str, int], int]:
    """How many outermost functions all calls of one forward have in common: decorators."""
    common: dict[tuple[str, int], tuple[str, ...]] = {}
    for call in calls:
        functions = _undecorated(call.functions)
        before = common.setdefault((call.place, call.visit), functions)
        shared = zip(reversed(before), reversed(functions), strict=False)
        same = [*takewhile(lambda pair: pair[0] == pair[1], shared)]
        common[call.place, call.visit] = before[len(before) - len(same):]
    return {visit: len(functions) for visit, functions in common.items()}


def _undecorated(functions: tuple[str, ...]) -> tuple[str, ...]:
    """Without the functions that decorators put around others."""
    return tuple(name for name in functions if not name.startswith("wrap"))


def _scope_key(scope: Scope, call: Call) -> Key:
    if scope.kind in ("experts", "indexer", "router"):
        return Key(scope.kind, scope.path)
    if scope.kind in ("state", "mask", "conv"):
        return Key(scope.kind, scope.path, f"{call.visit}{scope.function}")
    return Key(scope.kind, scope.path, call.visit)


def _collected(calls: Sequence[Call], keys: Sequence[Key | None]) -> dict[Key, tuple[Call, ...]]:
    groups: dict[Key, list[Call]] = {}
    last = next((key for key in keys if key is not None), Key("run", ""))
    for call, key in zip(calls, keys, strict=True):
        last = key or last
        groups.setdefault(last, []).append(call)
    return {key: tuple(own) for key, own in groups.items()}
