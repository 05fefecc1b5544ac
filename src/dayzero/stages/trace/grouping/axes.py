"""The axes of an operation, read off the shapes of its calls; what shapes do not tell is from the ModelSpec."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod

from dayzero.data.operators import Operators
from dayzero.schema import ModelSpec
from dayzero.stages.trace.capture.captured import ITEM, Call, Captured
from dayzero.stages.trace.capture.kinds import plain

from . import attention, pointwise, products
from .around import Around, Read
from .group import Group, value
from .structure import Key


class Reader:
    """Turns the calls of one operation into a Group."""

    def __init__(self, table: Operators, captured: Captured, types: Mapping[str, str], spec: ModelSpec) -> None:
        self._table, self._run, self._types, self._spec = table, captured, types, spec
        self._layers = _layers_prefix(types, len(spec.layers))
        self._window = max((kind.window or 0 for kind in spec.attentions.values()), default=0)
        self._chosen: dict[int | None, int] = {}
        self._stored = _stored(spec)

    def group(self, key: Key, calls: Sequence[Call]) -> Group:
        """The operation with its axes."""
        work = [_shaped(call) for call in calls if call.kind != "view"]
        around = self._around(key, work)
        op, variant, axes = self._read(key.op, work, around)
        if op == "indexer":
            self._chosen[self._layer(key.path)] = int(value(axes["top_k"]))
        return Group(op, variant, key.path, tuple(calls), axes, _dtype(work))

    def _read(self, op: str, work: Sequence[Call], around: Around) -> Read:
        bases = [self._table.kind(plain(call.op)) for call in work]
        readers = {
            "linear": products.linear, "matmul": products.matmul, "experts": products.experts,
            "router": products.router, "conv": products.convolution, "attention": attention.softmax,
            "state": attention.state, "indexer": attention.indexer, "rotary": attention.rotary,
            "mask": attention.mask, "norm": pointwise.norm, "embedding": pointwise.embedding,
            "sampling": pointwise.sampling, "cache": pointwise.cache, "residual": pointwise.residual,
        }  # fmt: skip
        read = readers[op](work, bases, around) if op in readers else None
        return read or pointwise.run(work, bases, around)

    def _around(self, key: Key, work: Sequence[Call]) -> Around:
        layer = self._layer(key.path)
        spec = self._spec.layers[layer] if layer is not None else None
        item = ITEM.get(_dtype(work[:1] if key.op == "state" else work), 2)
        return Around(
            self._run.batch, self._run.tokens, self._run.context, key.path, self._types.get(key.path, ""),
            layer is not None, self._spec.attentions.get(spec.attention) if spec else None,
            self._spec.feed_forwards.get(spec.feed_forward) if spec else None, self._window,
            self._chosen.get(layer, 0), self._spec.vocab_size, item,
            self._weight_item(key.path, item))

    def _layer(self, path: str) -> int | None:
        """Number of the decoder layer; None: it is in none."""
        match = re.match(rf"{re.escape(self._layers)}\.(\d+)(\.|$)", path) if self._layers else None
        return int(match[1]) if match and int(match[1]) < len(self._spec.layers) else None

    def _weight_item(self, path: str, item: float) -> float:
        """Bytes of each logical weight of a module, as the release's tensors show; else those of an activation."""
        stored, parameters = self._stored.get(_inside(re.sub(r"\.\d+(\.|$)", r".{L}\1", path, count=1)), (0, 0))
        return stored / parameters if parameters else item


def _shaped(call: Call) -> Call:
    """The call without tensors of no dimension, which say nothing about sizes; without a result, it is the largest
    argument, in which the operator writes."""
    inputs, outputs = (tuple(shape for shape in side if shape) for side in (call.inputs, call.outputs))
    return call._replace(inputs=inputs, outputs=outputs or (max(inputs, key=prod, default=(1,)),))


def _dtype(work: Sequence[Call]) -> str:
    """dtype of the largest product; without one of the largest result, but not that of an index or a table."""
    product = max(work, key=lambda call: call.flops, default=None)
    if product and product.flops:
        return product.dtype
    floats = [call for call in work if call.outputs and not call.dtype.startswith(("i", "u", "bool"))]
    largest = max(floats or work, key=lambda call: max(map(prod, call.outputs), default=0), default=None)
    return largest.dtype if largest else ""


def _stored(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """(bytes, logical parameters) of all tensors below each module, scales included, by its path in a layer."""
    totals: dict[str, tuple[int, int]] = {}
    for family in spec.families:
        path = _inside(family.pattern)
        while path := path.rpartition(".")[0]:
            stored, parameters = totals.get(path, (0, 0))
            totals[path] = stored + family.stored_bytes, parameters + family.parameters
    return totals


def _inside(pattern: str) -> str:
    """Path below the list of layers, which checkpoint and code may call differently; the whole outside layers."""
    return pattern.partition(".{L}.")[2] or pattern


def _layers_prefix(types: Mapping[str, str], count: int) -> str:
    """Path of the list of decoder layers: the one with as many members as the model has layers, else the longest."""
    members: dict[str, int] = {}
    for path in types:
        parent, _, name = path.rpartition(".")
        if name.isdigit():
            members[parent] = members.get(parent, 0) + 1
    outer = {path: size for path, size in members.items() if not re.search(r"\.\d+(\.|$)", path)}
    return max(outer, key=lambda path: (outer[path] == count, outer[path]), default="")
