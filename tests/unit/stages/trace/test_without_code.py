"""A release whose code cannot run here has a graph all the same, which says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.plan_models import target

from dayzero.errors import NotPossible, UsageError
from dayzero.schema import from_json, to_json
from dayzero.schema.graph import OpGraph
from dayzero.stages.plan import plan
from dayzero.stages.read.card import read_card
from dayzero.stages.trace import formula, from_contract, graph_of, overview, to_contract


@pytest.fixture
def impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    def trace(*arguments: object, **options: object) -> OpGraph:
        raise NotPossible("transformers has no class for model_type 'new'", "install a newer one")

    monkeypatch.setattr("dayzero.stages.trace.trace", trace)


def test_it_says_why(impossible: None, root: Path) -> None:
    release = read_card(root / "examples/cards/kimi-k3.toml")
    found = graph_of(release, batch=2, tokens=32, context=16)
    assert found.operations and not found.operators
    assert found.missing == (f"{formula.NO_CODE}: transformers has no class for model_type 'new'",)
    assert (found.phases["prefill"].batch, found.phases["decode"].context) == (2, 16)
    with pytest.raises(UsageError):
        graph_of(release, tokens=0)


def test_it_is_shown_stored_and_printed(root: Path) -> None:
    found = formula.graph(read_card(root / "examples/cards/gpt-oss-20b.toml").model)
    assert from_json(to_json(found), OpGraph) == found
    contract = to_contract(found)
    assert contract["missing"] == [{"call": formula.NO_CODE, "file": "", "line": 0}]
    assert from_contract(contract) == found
    overview(found, views=("summary", "operators", "kinds", "tree"))


def test_its_operators_add_up_to_their_phases(root: Path) -> None:
    found = formula.graph(read_card(root / "examples/cards/gpt-oss-20b.toml").model)
    made = to_contract(found)
    for name, phase in made["phases"].items():
        own = [row for row in made["operators"] if row["phase"] == name]
        for total, column in (("flops", "flops"), ("bytes", "bytes"), ("operators", "count")):
            assert phase[total] == sum(row[column] for row in own) > 0
    head = next(row for row in made["operators"] if row["op"] == "linear")
    assert (head["kind"], list(head["inputs"]), head["module_type"]) == ("linear", [], "")
    assert not from_contract(made).operators and not from_contract(made).phases["decode"].operators


def test_a_plan_does_not_take_operations_for_calls(root: Path) -> None:
    """The overhead of calls is not known from definitions: the plan is the one without a graph."""
    model = read_card(root / "examples/cards/smollm2-135m.toml").model
    without, with_graph = (plan(model, target(), graph=graph) for graph in (None, formula.graph(model)))
    assert with_graph.candidates == without.candidates and with_graph.notes == without.notes
