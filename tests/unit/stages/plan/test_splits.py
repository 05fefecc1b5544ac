"""Stages are as alike as they can be, and other splits are taken where they help."""

from itertools import combinations, pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import dense, device, family, sparse, target

from dayzero.placement import split_layers
from dayzero.placement.many import Layouts
from dayzero.schema import Layout
from dayzero.stages.plan import plan
from dayzero.stages.plan.evaluate import evaluate
from dayzero.stages.plan.splits import Splits, balanced, heaviest


@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 8.5]), min_size=1, max_size=9), st.integers(1, 9))
def test_no_split_has_a_lighter_heaviest_stage(weights, stages):
    column, count = np.array(weights), len(weights)
    if stages > count:
        return
    found = balanced(column, stages)
    assert len(found) == stages and (found[0][0], found[-1][1]) == (0, count)
    assert all(start < stop for start, stop in found)
    assert all(before[1] == after[0] for before, after in pairwise(found))
    every = (tuple(pairwise((0, *cuts, count))) for cuts in combinations(range(1, count), stages - 1))
    assert heaviest(column, found) == pytest.approx(min(heaviest(column, split) for split in every))


def large_head():
    """Eight layers of 7 MB, and a vocabulary of 256 MB in the first and again in the last stage."""
    model = sparse(experts=1, top_k=1)
    rows = 125_000
    bare = [one for one in model.families if one.role not in ("embedding", "head")]
    ends = [family("embedding", (rows, 1024), 0, "vocab", 0), family("head", (rows, 1024), 0, "vocab", 0)]
    return msgspec.structs.replace(model, families=tuple(bare + ends), vocab_size=rows)


def test_the_stages_with_embedding_and_head_have_fewer_layers():
    model, on = large_head(), target(4, concurrency=64, input_tokens=64, output_tokens=8192)
    found = plan(model, msgspec.structs.replace(on, layouts=(Layout(pp=4),))).candidates[0]
    sizes = [stop - start for start, stop in found.stages]
    assert sum(sizes) == 8 and sizes != [2, 2, 2, 2] and sizes[-1] == 1
    even = evaluate(model, on, Layouts.of([Layout(pp=4)]))
    assert found.tokens_per_s.value > 1.01 * even.tokens_per_s[0]


def test_a_split_by_memory_makes_room():
    model = large_head()
    layouts, on = Layouts.of([Layout(pp=2)]), target(2, concurrency=4)
    need = evaluate(model, on, layouts).need_bytes[0]
    tight = target(2, concurrency=4, on=device(memory_bytes=int(need / 0.9) - 1_000_000))
    assert not evaluate(model, tight, layouts).fits[0]
    splits = Splits(model, tight)
    found = splits.improved(evaluate(model, tight, layouts), tight, None)
    assert found.fits[0] == (found.need_bytes[0] <= tight.cluster.usable_bytes)
    assert found.need_bytes[0] <= need and splits.split(found, 0)[0][0] == 0


def test_no_layout_gets_worse():
    """Of all depths, and of figures that are the same as with the split that is named."""
    model, on = dense(), target(8, concurrency=16)
    layouts = Layouts.of([Layout(pp=pp, dp=8 // pp) for pp in (1, 2, 4, 8)])
    even, splits = evaluate(model, on, layouts), Splits(model, on)
    found = splits.improved(even, on, None)
    assert (found.tokens_per_s >= even.tokens_per_s).all() and found.cut[0] == 0 and found.cut.any()
    for row in range(4):
        named = splits.split(found, row)
        again = evaluate(model, on, layouts.take([row]), split=lambda model, pp, named=named: named)
        for figure in ("need_bytes", "max_sequences", "ttft_s", "tpot_s", "tokens_per_s"):
            assert getattr(again, figure)[0] == pytest.approx(getattr(found, figure)[row], rel=1e-12)


def test_a_measured_device_has_stages_of_as_many_layers():
    on = target(4, on=device(efficiency=1.0, measured=True), layouts=(Layout(pp=4),))
    assert plan(large_head(), on).candidates[0].stages == split_layers(large_head(), 4)
