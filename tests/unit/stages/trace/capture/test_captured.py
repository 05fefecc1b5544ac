"""How often calls are made in each layer, when layers, parts of layers and experts were left out; no torch."""

from __future__ import annotations

from dayzero.stages.trace.capture.captured import Call, Captured
from dayzero.stages.trace.rows import operators, totals

REPEATS = {"m.layers.1": ("m.layers.2", "m.layers.3"), "m.layers.1.mlp": ("m.layers.5.mlp",),
           "m.layers.1.mlp.experts.0": ("m.layers.1.mlp.experts.1", "m.layers.1.mlp.experts.2"),
           "m.layers.5": ("m.layers.6",)}  # fmt: skip


def call(place: str) -> Call:
    return Call("aten.mm", place, 0, (), "linear", ((2, 3), (3, 4)), ((2, 4),), "bf16", 48, 100)


def captured(*places: str) -> Captured:
    times = {"m.layers.1": 0, "m.layers.2": 2, "m.layers.3": 2, "m.layers.5": 2, "m.layers.6": 3}
    return Captured("prefill", 1, 2, 0, tuple(map(call, places)), REPEATS, times)


def test_copies_nest() -> None:
    run = captured()
    assert run.copies("m.norm") == {-1: 1}
    assert run.copies("m.layers.1.attn") == {1: 1, 2: 1, 3: 1}
    assert run.copies("m.layers.1.mlp.up") == {1: 1, 2: 1, 3: 1, 5: 1, 6: 1}
    assert run.copies("m.layers.1.mlp.experts.0.up") == {1: 3, 2: 3, 3: 3, 5: 3, 6: 3}
    assert run.copies("m.layers.5.attn") == {5: 1, 6: 1}
    assert run.copies("m.layers.9.attn") == {9: 1}


def test_rows_hold_the_layers_that_were_left_out_in_order() -> None:
    run = captured("m.layers.1.attn", "m.layers.1.mlp.experts.0.up", "m.layers.5.attn", "m.norm")
    types = {f"m.layers.{layer}.{part}": "Linear" for layer in (1, 2, 3, 5, 6)
             for part in ("attn", "mlp.experts.0.up")} | {"m.norm": "Norm"}
    rows = operators(run, types, lambda path: path.replace("experts.0", "experts.*"))
    assert [(row.module, row.count) for row in rows] == [
        ("m.layers.1.attn", 1), ("m.layers.1.mlp.experts.*.up", 3),
        ("m.layers.2.attn", 1), ("m.layers.2.mlp.experts.*.up", 3),
        ("m.layers.3.attn", 1), ("m.layers.3.mlp.experts.*.up", 3),
        ("m.layers.5.mlp.experts.*.up", 3), ("m.layers.5.attn", 1),
        ("m.layers.6.mlp.experts.*.up", 3), ("m.layers.6.attn", 1), ("m.norm", 1)]
    phase = totals(run, rows)
    assert (phase.operators, phase.flops, phase.bytes) == (21, 21 * 48, 21 * 100)
