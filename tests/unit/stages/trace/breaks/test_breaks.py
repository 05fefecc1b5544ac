"""What graph capture would stumble over: places that are put into source text and graphs on purpose."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from tests.support.graphs import call, empty_graph, layered_graph

from dayzero.data.breaks import breaks
from dayzero.data.operators import operators
from dayzero.errors import NotPossible
from dayzero.schema import ControlFlow, LayerKind, ModuleNode, OpGraph, Release
from dayzero.schema.graph import StandIn
from dayzero.stages.trace import Break, Exported, breaks_tables, foreseen, try_export
from dayzero.stages.trace.breaks.syntax import branches_at, side_effects

SOURCE = """import os
import torch

class Base:
    def forward(self, x):
        self.calls = 1
        return self.helper(x)

    def helper(self, x):
        print("x")
        return helper(x)

    def unused(self, x):
        print("never")

class Layer(Base):
    def __init__(self):
        print("building is not running")

class Other:
    def forward(self, x):
        breakpoint()

def helper(x):
    batch, length = x.shape[0], x.shape[1]
    chunks = length // 64
    for i in range(chunks):
        x = x + i
    for j in range(4):
        logger.warning_once("fine")
    for k in range(0, x.size(1), 8):
        os.environ.get("A")
    rate = torch.distributed.reprint(x)
    pointer = x.data_ptr()
    if x.sum() > 0:
        return x
    return hits(x) if bool(
        x.any()) else x
"""


def test_effects_are_found_where_forward_reaches_them() -> None:
    found = [(effect.line, effect.kind) for effect in side_effects(SOURCE, ["Layer"])]
    assert found == [(6, "state"), (10, "output"), (27, "loop"), (31, "loop"), (32, "outside"), (34, "device")]


def test_only_the_classes_of_the_model_count() -> None:
    assert [effect.kind for effect in side_effects(SOURCE, ["Other"])] == ["debugger"]
    assert list(side_effects(SOURCE, ["Nothing"])) == [] and list(side_effects("def broken(", ["A"])) == []


def test_a_line_that_decides_the_way() -> None:
    assert [line for line in range(1, 40) if branches_at(SOURCE, line)] == [27, 29, 31, 35, 37, 38]


def test_every_kind_of_control_flow_has_an_entry() -> None:
    known = {kind for values in breaks().values for kind in values.kinds}
    assert {answer.kind for answer in operators().answers} <= known


def with_code(tmp_path: Path, make: Callable[..., Release], text: str) -> Release:
    (tmp_path / "modeling_own.py").write_text(text)
    return make({"num_hidden_layers": 1, "architectures": []}, files=("modeling_own.py",), root=tmp_path)


def test_of_a_release_with_its_own_code(tmp_path: Path, make: Callable[..., Release]) -> None:
    file = "some/where/modeling_own.py"
    sites = tuple(ControlFlow(file=file, line=line, kind=kind, assumed="", times=1, executed=ran)
                  for line, kind, ran in ((35, "item", True), (34, "nonzero", True), (27, "item", False)))
    graph = msgspec.structs.replace(
        layered_graph(), control_flow=sites, modules=(ModuleNode(path="", type="Layer", parameters=0),),
        missing=("aten.odd (no shape rule: its result is that of zeros) at a.py:1", "decode (x) at b.py:2"),
        stand_ins=(StandIn(call="lib:kernel", op="delta", times=1),
                   StandIn(call="transformers.models.a:loop", op="scan", times=1)),
        operators=(call("m"), call("m", op="nobody.thing"), call("m", op="dayzero.delta")))
    found = foreseen(graph, with_code(tmp_path, make, SOURCE))
    ran = {each.place: each for each in found if each.certain}
    assert ran[f"{file}:35"].export == "fails"  # `if x.sum() > 0`
    assert ran[f"{file}:34"].export == "unknown size"
    assert ran["aten.odd"].kind == ran["nobody.thing"].kind == "shapes" and "decode" not in ran
    assert ran["lib:kernel"].kind == "kernel" and ran["transformers.models.a:loop"].kind == "loop"
    assert "dayzero.delta" not in ran
    assert [each.certain for each in found] == sorted((each.certain for each in found), reverse=True)
    seen = {each.place: each.kind for each in found if not each.certain}
    assert seen["modeling_own.py:10"] == "output" and "modeling_own.py:22" not in seen
    assert seen[f"{file}:27"] == "item"


def test_without_code_only_the_graph_speaks(make: Callable[..., Release]) -> None:
    assert foreseen(empty_graph(), None) == ()
    found = foreseen(layered_graph(), None)
    assert [each.place for each in found if each.kind != "kernel"] == ["a.py:3", "b.py:9"]


def test_the_librarys_own_file_is_searched(make: Callable[..., Release], configs: dict[str, dict[str, Any]]) -> None:
    pytest.importorskip("transformers")
    from dayzero.stages.trace.breaks.sources import sources

    graph = msgspec.structs.replace(layered_graph(), source="made")
    names = [source.name for source in sources(graph, make(configs["sliding"]))]
    assert names == ["transformers/models/gemma3/modeling_gemma3.py"]  # of model_type gemma3_text


def test_a_real_export(make: Callable[..., Release], configs: dict[str, dict[str, Any]]) -> None:
    pytest.importorskip("transformers")
    graph = msgspec.structs.replace(
        layered_graph(), source="made", layer_kinds=(LayerKind(kind="full", layers=(0, 1)),),
        modules=tuple(ModuleNode(path=f"model.layers{end}", type="M", parameters=0) for end in ("", ".0", ".1")))
    done = try_export(graph, make(configs["dense"]))
    assert (done.layers, done.kinds, done.error) == (1, ("full",), "") and done.nodes > 20 and done.seconds > 0


def test_an_export_that_fails_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from dayzero.stages.trace.breaks import exported

    class Branching(torch.nn.Module):
        def forward(self, input_ids: Any, use_cache: bool) -> Any:
            return input_ids if input_ids.sum() > 0 else input_ids + 1

    monkeypatch.setattr(exported, "_OURS", ("torch", "dayzero"))
    done = exported._export(Branching(), 1, ())
    assert done.nodes == 0 and "GuardOnDataDependent" in done.error and "test_breaks.py:" in done.place


def test_own_code_is_exported_where_it_is_trusted_only(make: Callable[..., Release],
                                                       configs: dict[str, dict[str, Any]]) -> None:
    with pytest.raises(NotPossible, match="own code"):
        try_export(layered_graph(), make(configs["dense"]))


def shown(what: object, width: int = 120) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(what)
    return console.export_text()


@pytest.mark.parametrize("width", [80, 120])
def test_tables(width: int) -> None:
    found = tuple(Break(kind="item", place=f"[red]a.py:{line}", what="asks", compile="graph break", export="fails",
                        certain=line < 3) for line in range(5))
    works = Exported(layers=2, kinds=("full",), seconds=1.5, nodes=1200, error="", place="")
    told = shown(breaks_tables(found, works, top=2), width)
    assert "works in 1.5 s, 1,200 nodes" in told and "[red]a.py:0" in told and "and 1 more" in told
    assert max(map(len, told.splitlines())) <= width
    failed = msgspec.structs.replace(works, nodes=0, error="Guard: u0", place="m.py:7")
    assert "fails at m.py:7 after 1.5 s" in shown(breaks_tables((), failed))
    assert "nothing is foreseen" in shown(breaks_tables(()))


def test_nothing_stumbles_over_a_graph_of_plain_operators() -> None:
    plain: OpGraph = msgspec.structs.replace(layered_graph(), control_flow=(), stand_ins=(), missing=())
    assert foreseen(plain, None) == ()
