"""What a plan says beside its layouts."""

from __future__ import annotations

from dayzero.schema import Change, Family, Layout, Plan, Point, Size, from_json, to_json

BEFORE = {"tpot_s": 0.02, "tokens_per_s": 100.0}


def change(lead: float, after: dict[str, float]) -> Change:
    return Change(resource="matrix rate", factor=0.8, before=BEFORE, after=after, first=Layout(tp=4), lead=lead)


def test_what_becomes_of_the_ranking() -> None:
    assert change(0.0, BEFORE).turns == "the same"
    assert change(0.04, BEFORE).turns == "tp=4, 4% ahead"
    assert change(-0.1, BEFORE).turns == "tp=4, for a limit is broken"
    assert change(-1.0, {}).turns == "the first does not keep up; tp=4"
    assert change(0.0, {}).turns == "none keeps up"


def test_families_are_named_by_what_decides_or_by_an_example() -> None:
    family = Family(degrees={"tp": 24}, rule="shard-heads", message="", layouts=3, example=Layout(tp=24, pp=2))
    assert family.text == "tp=24"
    undecided = Family(degrees={}, rule="shard-width", message="", layouts=3, example=Layout(tp=24, pp=2))
    assert undecided.text == "tp=24 pp=2"


def test_all_of_it_is_kept_in_a_plan() -> None:
    point = Point(layout=Layout(tp=2), concurrency=8, ttft_s=0.5, tpot_s=0.02, tokens_per_s_per_device=200.0,
                  best_for=("tpot",), within=True)
    size = Size(works="fits", nodes=2, devices_per_node=8, layout=None, figures={}, reason="of up to 16 devices")
    plan = Plan(candidates=(), rejected=(), evaluated=0, seconds=0.0, workload={}, front=(point,), smallest=(size,),
                sensitivity=(change(0.0, {}),), summary=("a sentence",))
    assert from_json(to_json(plan), Plan) == plan
    assert point.tokens_per_s_per_user == 50.0 and size.devices == 16
