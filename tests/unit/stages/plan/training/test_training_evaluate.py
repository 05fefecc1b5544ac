"""Many ways at once give what each gives alone; the space has every way that goes together, and none else."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.plan_models import dense, device, sparse, target

from dayzero.data.training import generation
from dayzero.schema import Layout
from dayzero.stages.plan.training.evaluate import Evaluator
from dayzero.stages.plan.training.memory import peak_bytes
from dayzero.stages.plan.training.room import roomy
from dayzero.stages.plan.training.search import Search
from dayzero.stages.plan.training.setup import Setup
from dayzero.stages.plan.training.space import legal, moved, ways
from dayzero.stages.plan.training.step import seconds, work

REACHED = generation("sm_90").reached


def wanted(devices=8, nodes=2, **changes):
    return target(devices, nodes, **({"kind": "train", "global_batch": 64, "input_tokens": 2048} | changes))


def space(model, on):
    good, _ = legal(model, on)
    return ways(model, on, good)[0]


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_arrays_agree_with_one_way_alone(data):
    model, on = data.draw(st.sampled_from((dense(), sparse(layers=6)))), wanted(on=device(host_bandwidth=5e10))
    every = space(model, on)
    picked = every.take(np.array(data.draw(st.lists(st.integers(0, len(every) - 1), min_size=4, max_size=4))))
    picked = moved(picked) if data.draw(st.booleans()) else picked
    evaluator = Evaluator(model, on.cluster, REACHED)
    found = evaluator.evaluate(picked)
    for place in range(len(picked)):
        setup, chunks = picked[place], evaluator.chunks(picked, place)
        alone = seconds(work(model, setup, on.cluster, chunks), setup, REACHED)
        need = max(sum(causes.values()) for causes in peak_bytes(model, setup, on.cluster, chunks=chunks))
        assert found.seconds[place] == pytest.approx(alone.seconds, rel=1e-9)
        assert found.bubble[place] == pytest.approx(alone.bubble, rel=1e-9)
        assert found.need[place] == pytest.approx(need, rel=1e-6)
        assert sum(alone.causes.values()) == pytest.approx(alone.seconds, rel=1e-9)


def test_the_space_has_all_that_goes_together():
    every = space(dense(), wanted(8, 1))
    setups = {(one.layout.text, one.micro_batch, one.virtual, one.schedule, one.recompute, one.zero,
               one.sequence_parallel) for one in (every[place] for place in range(len(every)))}
    assert len(setups) == len(every)
    assert ("pp=2 dp=4 cp=2", 2, 3, "1f1b", "full", 3, True) in setups
    assert ("pp=2 dp=4", 4, 1, "zero-bubble", "products", 2, True) in setups
    for one in (every[place] for place in range(len(every))):  # Setup raises for a batch that is not shared evenly
        assert one.virtual == 1 or (one.layout.pp > 1 and one.micro_batches % one.layout.pp == 0)
        assert one.schedule == "1f1b" or (one.layout.pp > 1 and one.virtual == 1)
        assert one.layout.dp > 1 or one.zero == 1
        assert one.sequence_parallel or one.layout.tp > 1


def test_stages_with_the_head_and_the_embedding_get_fewer_layers():
    on = wanted(4, 1, layouts=(Layout(pp=4),), input_tokens=512)
    every = space(dense(), on)
    plain = next(place for place in range(len(every)) if every.virtual[place] == 1)
    sizes = [stop - start for start, stop in Evaluator(dense(), on.cluster, REACHED).chunks(every, plain)]
    assert sum(sizes) == 30 and sizes[-1] < min(sizes[:-1])  # the head multiplies with 49152 x 576


def test_stages_make_room_for_micro_batches_under_way():
    model, layout = sparse(layers=48), Layout(pp=4, dp=2)
    chosen = Setup(layout=layout, sequence=4096, micro_batch=4, global_batch=64, scheme="bf16")

    def most(chunks, on):
        return max(sum(causes.values()) for causes in peak_bytes(model, chosen, on.cluster, chunks=chunks))

    even = tuple((start, start + 12) for start in range(0, 48, 12))
    tight = int(most(even, wanted(8, 1)) * 0.93 / 0.9)
    on = wanted(8, 1, on=device(memory_bytes=tight))
    chunks = roomy(Evaluator(model, on.cluster, REACHED), chosen)
    assert chunks and most(chunks, on) <= on.cluster.usable_bytes < most(even, on)
    small = wanted(8, 1, on=device(memory_bytes=tight // 8))
    assert roomy(Evaluator(model, small.cluster, REACHED), chosen) == ()


def test_a_host_without_room_takes_nothing():
    little = device(memory_bytes=2 * 10**9, host_bandwidth=5e10, host_memory_bytes=10**6)
    good, _ = legal(sparse(), wanted(8, 1))
    none = Search(sparse(), wanted(8, 1, on=little), good)
    some = Search(sparse(), wanted(8, 1, on=msgspec.structs.replace(little, host_memory_bytes=10**12)), good)
    assert some.fitting() > none.fitting()
    assert some.trained(some.order()[0]).offload != "none"
