"""The space is complete, without doubles, and judged as each layout is alone."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import dense, sparse, target

from dayzero.placement import blockers, layouts
from dayzero.placement.legality import RULES
from dayzero.schema import Attention, Layout
from dayzero.stages.plan.space import every, judge

LATENT = Attention(kind="latent", heads=16, kv_heads=1, head_dim=192, v_head_dim=128, kv_rank=512, rope_dim=64)
MODELS = {"dense": dense(), "sparse": sparse(), "latent": msgspec.structs.replace(sparse(), attentions={"a": LATENT})}


@given(st.sampled_from([1, 2, 6, 16, 24]), st.sampled_from([*MODELS]))
def test_every_layout_is_there_once(world, name):
    model, found = MODELS[name], list(every(MODELS[name], world))
    assert len(set(found)) == len(found) and {one.world_size for one in found} == {world}
    plain = set(layouts(world, model.mixes_experts))
    assert plain <= set(found) and plain == set(every(model, world, groups=False, shared_caches=False))
    for one in found:
        assert one.attention_degree % one.cp == 0


def test_a_sequence_is_shared_where_ranks_would_hold_the_same():
    # 4 key/value heads: of 16 ranks four hold each of them; a latent cache is on all 16
    assert {one.cp for one in every(MODELS["sparse"], 16) if one.attention_degree == 16} == {1, 2, 4}
    assert {one.cp for one in every(MODELS["sparse"], 16) if one.attention_degree == 4} == {1}
    assert {one.cp for one in every(MODELS["latent"], 16) if one.attention_degree == 16} == {1, 2, 4, 8, 16}
    assert Layout(tp=16, ep=16, attention_tp=2, cp=2) in set(every(MODELS["latent"], 16))


@pytest.mark.parametrize("name", [*MODELS])
@pytest.mark.parametrize("world", [6, 16, 48])
def test_rules_say_the_same_as_of_each_alone(name, world):
    model, engine = MODELS[name], target().engine
    judged = judge(model, engine, every(model, world))
    alone = {layout: [(one.rule, f"{one.subject}: {one.message}") for one in blockers(model, layout, engine)]
             for layout in every(model, world)}
    assert judged.legal.tolist() == [not reasons for reasons in alone.values()]
    told = {}
    for one in judged.rejected():
        told.setdefault(one.layout, []).append((one.rule, one.message))
    assert told == {layout: reasons for layout, reasons in alone.items() if reasons} and told


def test_each_rule_is_asked_once_for_what_it_reads(monkeypatch):
    asked = []

    def rule(model, layout, engine):
        asked.append(layout.ep)
        return ()

    monkeypatch.setattr("dayzero.stages.plan.space.RULES", {"one": rule})
    assert judge(MODELS["sparse"], target().engine, every(MODELS["sparse"], 16)).legal.all()
    assert sorted(asked) == [1, 2, 4, 8, 16] and RULES
