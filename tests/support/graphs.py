"""Operator graphs made by hand: two kinds of layers, rows with and without layers, with operations or without."""

from __future__ import annotations

from typing import Any

import msgspec

from dayzero.schema import ControlFlow, Device, LayerKind, ModuleNode, OpCall, OpGraph, Phase
from dayzero.schema.graph import OWN, Operation, StandIn

DEVICE = Device(name="made", vendor="v", arch="a", memory_bytes=2**30, memory_bandwidth=100.0, flops={"bf16": 1000.0})
"""Its balance is 10 operations for each byte."""


def call(module: str, op: str = "aten.mm", flops: int = 10, size: int = 4, phase: str = "prefill", **other: Any
         ) -> OpCall:
    return OpCall(**{"op": op, "module": module, "module_type": "Linear", "kind": "linear", "count": 2,
                     "inputs": ((1, 2), ()), "outputs": ((1, 3),), "dtype": "bf16", "flops": flops, "bytes": size,
                     "phase": phase, **other})


def layered_graph(operations: bool = False) -> OpGraph:
    """Layers 0 and 2 are `full`, 1 is `sliding`. Prefill: each layer has a product of 100 operations and 4 bytes in
    `attn`, and the sliding one an addition that moves 90 bytes; `head` has a product of 60. Decode: `head` only."""
    calls = [call(f"m.layers.{index}.attn", flops=100) for index in range(3)]
    calls += [call("m.layers.1.[red]odd", op="aten.add", kind="elementwise", flops=0, size=90),
              call("head", flops=60, size=6), call("head", flops=9, size=3, phase="decode")]
    paths = ["", "m", "m.layers", *(f"m.layers.{i}{end}" for i in range(3) for end in ("", ".attn")),
             "m.layers.1.[red]odd", "head"]
    nodes = tuple(ModuleNode(path=path, type="ModuleList" if path.endswith("layers") else "M",
                             parameters=5 if path.endswith("attn") else 0) for path in paths)
    phases = {
        "decode": Phase(name="decode", batch=1, tokens=1, context=8, flops=9, bytes=3, operators=2),
        "prefill": Phase(name="prefill", batch=1, tokens=8, context=0, flops=360, bytes=108, operators=10)}
    return OpGraph(
        parameters=15, seconds=0.5, phases=phases, operators=tuple(calls), modules=nodes, source=f"{OWN} made.M",
        control_flow=(ControlFlow(file="a.py", line=3, kind="nonzero", assumed="2 of 4", times=7, executed=True),
                      ControlFlow(file="b.py", line=9, kind="item", assumed="", times=0, executed=False)),
        missing=("aten.x (why at all) at a/b.py:12",),
        layer_kinds=(LayerKind(kind="full", layers=(0, 2), traced=(0,), proof="same structure"),
                     LayerKind(kind="sliding", layers=(1,), traced=(1,))),
        stand_ins=(StandIn(call="fla.ops.chunk", op="delta", times=3),), supplied=("a.b -> c",),
        isolation=("no network",), operations=made_operations() if operations else ())


def made_operations() -> tuple[Operation, ...]:
    """The prefill of `layered_graph`, grouped: attention in all three layers, the addition, the head."""
    shared: dict[str, Any] = {"phase": "prefill", "dtype": "bf16"}
    return (
        Operation(op="attention", variant="full", module="m.layers.{L}.attn", layers=(0, 1, 2), count=3,
                  axes={"tokens": "batch*tokens", "heads": 2.0}, flops=300, bytes=12, counted_flops=300,
                  counted_bytes=12, calls={"aten.mm": 6}, **shared),
        Operation(op="elementwise", module="m.layers.{L}.[red]odd", layers=(1,), count=2, axes={}, flops=0, bytes=90,
                  counted_flops=0, counted_bytes=90, calls={"aten.add": 2}, exact=False, **shared),
        Operation(op="linear", variant="head", module="head", count=2, axes={}, flops=60, bytes=6, counted_flops=60,
                  counted_bytes=6, calls={"aten.mm": 2}, **shared))


def empty_graph() -> OpGraph:
    """Nothing could be traced."""
    return msgspec.structs.replace(layered_graph(), phases={}, operators=(), modules=(), control_flow=(),
                                   layer_kinds=(), stand_ins=(), supplied=(), isolation=())


def formula_graph() -> OpGraph:
    """A graph of operations only, as there is one without code."""
    graph = layered_graph(operations=True)
    phases = {name: msgspec.structs.replace(phase, operators=0) for name, phase in graph.phases.items()}
    return msgspec.structs.replace(
        graph, phases=phases, operators=(), modules=(), control_flow=(), stand_ins=(), supplied=(), isolation=(),
        missing=(), layer_kinds=tuple(msgspec.structs.replace(each, traced=(), proof="") for each in graph.layer_kinds))
