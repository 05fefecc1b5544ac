"""How weights are cut: nothing is lost, nothing is counted twice, and what is replicated is replicated."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import dense, family, sparse

from dayzero.data import engine
from dayzero.placement import blockers, rank_bytes, rank_parameters, split_layers, stage_bytes, ways
from dayzero.placement.split import is_expert, local_extent
from dayzero.schema import Layout, ModelSpec, WeightFamily

ANY = engine("any")
degrees = st.sampled_from([1, 2, 3, 4, 6, 8, 16])


def whole(model: ModelSpec) -> range:
    return range(len(model.layers))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    tp, dp = draw(degrees), draw(degrees)
    ep = draw(st.sampled_from([ep for ep in range(1, tp * dp + 1) if tp * dp % ep == 0]))
    return Layout(tp=tp, dp=dp, ep=ep)


@given(layouts())
def test_all_ranks_together_hold_everything(layout: Layout) -> None:
    model = sparse()
    for one in model.families:
        share = rank_bytes(one, model, layout, ANY, whole(model))
        parts = layout.ep * layout.expert_tp if is_expert(one) else ways(one, model, layout)
        assert 0 < share <= one.stored_bytes
        assert share * parts >= one.stored_bytes


@given(layouts())
def test_even_cuts_are_exact(layout: Layout) -> None:
    model = sparse()
    for one in model.families:
        parts = layout.ep * layout.expert_tp if is_expert(one) else ways(one, model, layout)
        local, extent = local_extent(one, model, ways(one, model, layout))
        whole_experts = not is_expert(one) or one.experts % layout.ep == 0
        if local * ways(one, model, layout) == extent and whole_experts:
            assert rank_bytes(one, model, layout, ANY, whole(model)) * parts == one.stored_bytes
            assert rank_parameters(one, model, layout, ANY, whole(model)) * parts == one.parameters


@given(layouts())
def test_a_legal_layout_cuts_everything_but_the_vocabulary_evenly(layout: Layout) -> None:
    model = sparse()
    if blockers(model, layout, ANY):
        return
    for one in model.families:
        parts = ways(one, model, layout)
        local, extent = local_extent(one, model, parts)
        assert one.axis is None or one.split == "vocab" or local * parts == extent


@given(st.integers(1, 8))
def test_pipeline_stages_together_hold_everything(pp: int) -> None:
    model = sparse()
    stages = [range(*stage) for stage in split_layers(model, pp)]
    assert sum(stage_bytes(model, Layout(pp=pp), ANY, stage) for stage in stages) == model.checkpoint_bytes


def test_a_tied_embedding_is_on_the_first_and_on_the_last_stage() -> None:
    model = dense()
    embedding = next(one for one in model.families if one.role == "embedding")
    shares = [rank_bytes(embedding, model, Layout(pp=3), ANY, range(*stage)) for stage in split_layers(model, 3)]
    assert shares == [embedding.stored_bytes, 0, embedding.stored_bytes]
    untied = msgspec.structs.replace(model, tied_embeddings=False)
    shares = [rank_bytes(embedding, untied, Layout(pp=3), ANY, range(*stage)) for stage in split_layers(model, 3)]
    assert shares == [embedding.stored_bytes, 0, 0]


def test_of_a_tied_embedding_only_the_matrix_is_on_the_last_stage() -> None:
    stages = split_layers(dense(), 2)
    for role in ("embedding.norm", "embedding.position"):
        one = family(role, (10, 10), 0)
        shares = [rank_bytes(one, dense(), Layout(pp=2), ANY, range(*stage)) for stage in stages]
        assert shares == [one.stored_bytes, 0]


def test_what_no_engine_loads_takes_nothing() -> None:
    for one in (family("unused.head", (100, 10), 0, "vocab", 0), family("unused", (100, 10), 0)):
        assert rank_bytes(one, dense(), Layout(), ANY, range(30)) == 0


def test_a_layer_without_heads_cuts_nothing_by_heads() -> None:
    model = sparse()
    none = msgspec.structs.replace(model.attentions["a"], kind="none", heads=0, kv_heads=0)
    model = msgspec.structs.replace(model, attentions={"a": none})
    assert stage_bytes(model, Layout(tp=2), ANY, whole(model)) > 0


def test_head_and_final_norm_are_on_the_last_stage() -> None:
    model, stages = sparse(), split_layers(sparse(), 2)
    for one in (family("head", (100, 10), 0, "vocab", 0), family("norm", (10,), 0)):
        shares = [rank_bytes(one, model, Layout(pp=2), ANY, range(*stage)) for stage in stages]
        assert shares == [0, one.stored_bytes]


def test_whole_heads_are_dealt_out() -> None:
    model = dense()  # 9 heads of 64
    query = next(one for one in model.families if one.role == "attention.q")
    assert rank_bytes(query, model, Layout(tp=3), ANY, range(30)) * 3 == query.stored_bytes
    # five heads on the fuller of two ranks, not four and a half
    assert rank_bytes(query, model, Layout(tp=2), ANY, range(30)) * 9 == query.stored_bytes * 5


def test_key_value_heads_are_replicated_beyond_their_number() -> None:
    model = sparse()  # 4 key/value heads
    key = next(one for one in model.families if one.role == "attention.k")
    assert ways(key, model, Layout(tp=2)) == 2
    assert ways(key, model, Layout(tp=16)) == 4
    assert ways(key, model, Layout(tp=16, attention_tp=2)) == 2


def test_experts_stay_whole_under_expert_parallelism() -> None:
    model = sparse()  # 64 experts
    up = next(one for one in model.families if one.role == "experts.up")
    assert ways(up, model, Layout(tp=8, ep=8)) == 1
    assert ways(up, model, Layout(tp=8, ep=2)) == 4
    for layout in (Layout(tp=8), Layout(tp=8, ep=8), Layout(tp=2, dp=4, ep=8), Layout(tp=8, ep=2)):
        assert rank_bytes(up, model, layout, ANY, range(8)) * 8 == up.stored_bytes, layout


def towers() -> WeightFamily:
    return family("vision", (64, 64), 27, pattern="vision_tower.blocks.{L}.wo.weight")


def test_a_tower_is_whole_on_every_rank_unless_the_engine_splits_it() -> None:
    model, tower = sparse(), towers()
    split = msgspec.structs.replace(ANY, vision="split")
    assert rank_bytes(tower, model, Layout(tp=4), ANY, range(8)) == tower.stored_bytes
    assert rank_bytes(tower, model, Layout(tp=4), split, range(8)) * 4 == tower.stored_bytes
    assert rank_bytes(tower, model, Layout(tp=1, pp=2), ANY, range(4, 8)) == 0


def test_prediction_layers_are_only_loaded_by_an_engine_that_speculates_with_them() -> None:
    model = sparse()
    one = msgspec.structs.replace(family("attention.q", (1024, 1024), 1, "heads", 0), layers=(8,))
    speculating = msgspec.structs.replace(ANY, facts=msgspec.structs.replace(ANY.facts, speculative="mtp"))
    assert rank_bytes(one, model, Layout(), ANY, range(8)) == 0
    assert rank_bytes(one, model, Layout(), speculating, range(8)) == one.stored_bytes
    assert rank_bytes(one, model, Layout(pp=2), speculating, range(4)) == 0
