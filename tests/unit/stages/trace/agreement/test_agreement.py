"""What a card does not say about the code: each sort of difference is found, told and counted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from dayzero.errors import UsageError
from dayzero.schema import OpCall, OpGraph
from dayzero.schema.graph import Operation
from dayzero.stages.read.card import read_card
from dayzero.stages.trace import agree, agreement_tables, formula
from dayzero.stages.trace.agreement import Remark

CALL = OpCall(op="aten.mm", module="", module_type="", kind="linear", count=1, inputs=(), outputs=(), dtype="bf16",
              flops=0, bytes=0, phase="prefill")  # fmt: skip


@pytest.fixture(scope="module")
def card(root: Path) -> OpGraph:
    """SmolLM2-135M: 30 layers of width 576, 9 heads of 64 and 3 for keys, 1536 inside."""
    return formula.graph(read_card(root / "examples/cards/smollm2-135m.toml").model, tokens=100, context=50)


def code(card: OpGraph, *, without: str = "", **changed: Any) -> OpGraph:
    """The card's graph as if its code had run: without operations of that module's name, and with those of `add`."""
    kept = [one for one in card.operations if not without or not one.module.endswith(without)]
    return msgspec.structs.replace(card, operations=(*kept, *changed.get("add", ())), operators=(CALL,))


def at(card: OpGraph, module: str, op: str = "linear") -> list[Operation]:
    """The operation of that module, in both phases."""
    return [one for one in card.operations if one.module.endswith(module) and one.op == op]


def remark(found: Any) -> Remark:
    (only,) = found.remarks
    return only


def test_nothing_differs(card: OpGraph) -> None:
    found = agree(code(card), card)
    assert not found.remarks and all(row.flops_off == row.bytes_off == 0 for row in found.rows)
    assert found.off("prefill") == 0 and found.flops("prefill")[0] == sum(
        one.flops for one in card.operations if one.phase == "prefill" and one.op in ("linear", "attention"))
    assert {row.kind for row in found.rows} == {"full + dense", ""}


def test_an_operation_that_the_card_does_not_have(card: OpGraph) -> None:
    """A norm of the queries: 9 heads of 64 in 30 layers, 4 operations for a value."""
    norm = [msgspec.structs.replace(one, module="model.layers.{L}.self_attn.q_norm",
                                    axes={**one.axes, "tokens": "batch * tokens * 9", "hidden": 64})
            for one in at(card, "input_layernorm", "norm")]
    found = remark(agree(code(card, add=norm), card))
    assert (found.status, found.op, found.layers, found.phases) == ("code", "norm (rms)", 30, ("prefill", "decode"))
    assert found.flops == 30 * 4 * 576 * (100 + 1)
    assert found.detail == "tokens batch * tokens * 9, hidden 64"


def test_an_operation_that_the_code_does_not_run(card: OpGraph) -> None:
    found = agree(code(card, without="up_proj"), card)
    one = remark(found)
    assert (one.status, one.module) == ("card", "model.layers.{L}.mlp.up_proj")
    assert one.flops == -30 * 2 * 101 * 576 * 1536
    (row,) = [row for row in found.rows if (row.phase, row.op, row.kind) == ("decode", "linear", "full + dense")]
    assert row.card_flops - row.code_flops == 30 * 2 * 576 * 1536
    assert row.flops_off == pytest.approx(-576 * 1536 / (3 * 576 * 1536 + 2 * 576 * 576 + 2 * 576 * 192))
    assert found.off("decode") < 0


def test_axes_that_differ(card: OpGraph) -> None:
    wide = [msgspec.structs.replace(one, axes={**one.axes, "outer": 1024}) for one in at(card, "q_proj")]
    one = remark(agree(code(card, without="q_proj", add=wide), card))
    assert (one.status, one.detail) == ("axes", "outer 1,024 in the code, 576 on the card")
    assert one.flops == 30 * 2 * 101 * 576 * (1024 - 576)


def test_fused_projections_are_the_same_work(card: OpGraph) -> None:
    """One matrix of 960 rows for queries (576), keys and values (192 each)."""
    bare = code(card, without="q_proj")
    rest = tuple(one for one in bare.operations if not one.module.endswith(("k_proj", "v_proj")))
    fused = [msgspec.structs.replace(one, module="model.layers.{L}.self_attn.qkv_proj", axes={**one.axes, "outer": 960})
             for one in at(card, "q_proj")]
    found = agree(msgspec.structs.replace(bare, operations=(*rest, *fused)), card)
    one = remark(found)
    assert (one.status, one.flops) == ("cut", 0) and one.detail == "one in the code for k_proj, q_proj, v_proj"
    assert one.bytes == -2 * 30 * 2 * 576 * (100 + 1)  # the input is read once, not three times
    assert found.off("prefill") == 0


def test_pointwise_operations_are_told_apart_by_their_size(card: OpGraph) -> None:
    """An activation of two calls for an element is the card's of five operations; one of another size is not."""
    found = agree(code(card, without=".mlp", add=[
        *at(card, "gate_proj"), *at(card, "up_proj"), *at(card, "down_proj"),
        *(msgspec.structs.replace(one, variant="", axes={**one.axes, "operations": 2})
          for one in at(card, ".mlp", "elementwise"))]), card)
    assert [(one.status, one.detail) for one in found.remarks if one.op == "elementwise"] == [
        ("axes", "operations 2 in the code, 5 on the card")]


def test_the_same_difference_is_one_remark(root: Path) -> None:
    """gpt-oss has sliding and full layers: what all of them lack is told once."""
    graph = formula.graph(read_card(root / "examples/cards/gpt-oss-20b.toml").model)
    found = agree(code(graph, without="o_proj"), graph)
    assert len(found.remarks) == 1 and found.remarks[0].layers == 24
    assert {row.kind for row in found.rows} == {"sliding + experts", "full + experts", ""}


def test_no_code_ran(card: OpGraph) -> None:
    with pytest.raises(UsageError, match="no code ran"):
        agree(card, card)


def test_what_is_shown(card: OpGraph) -> None:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(agreement_tables(agree(code(card, without="up_proj"), card)))
    text = console.export_text()
    assert "only on the card: what the code does not run: 1" in text and "model.layers.{L}.mlp.up_proj" in text
    assert "prefill: what computes differs by -" in text
    console.print(agreement_tables(agree(code(card), card)))
    assert "nothing differs" in console.export_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2-135m", "gpt-oss-20b", "qwen3-next-80b-a3b", "deepseek-v3"])
def test_the_library_s_classes(root: Path, name: str) -> None:
    """What the library's code runs computes what follows from the card, within a thousandth; here to the last
    operation."""
    pytest.importorskip("transformers")
    from dayzero.stages.trace import trace

    release = read_card(root / "examples/cards" / f"{name}.toml")
    found = agree(trace(release, tokens=96, context=32), formula.graph(release.model))
    for phase in ("prefill", "decode"):
        assert abs(found.off(phase)) < 1e-3, [(one.op, one.detail) for one in found.remarks[:5]]
    assert not [one for one in found.remarks if one.op.startswith(("linear", "experts", "attention", "router", "norm"))]
