"""How sharp an order is, and which kinds of layouts nothing measured stands behind."""

import numpy as np
from tests.support.plan_models import dense, device, sparse, target

from dayzero.data.covers import covers
from dayzero.placement.many import Layouts
from dayzero.schema import Layout
from dayzero.stages.plan import plan
from dayzero.stages.plan.choice.sharpness import kinds, sharpness

SOME = Layouts.of([Layout(tp=8, dp=2), Layout(tp=8, pp=2), Layout(tp=16), Layout(tp=8, dp=2, ep=16),
                   Layout(tp=16, attention_tp=4, cp=2)])
CLUSTER = target(8, 2).cluster


def test_kinds():
    found = {name: mask.tolist() for name, mask in kinds(SOME, CLUSTER).items()}
    assert found == {"pp": [False, True, False, False, False], "cp": [False] * 4 + [True],
                     "attention_tp": [False] * 4 + [True], "tp over nodes": [False, False, True, False, True],
                     "ep over nodes": [False, False, False, True, False]}
    assert set(found) == set(covers().kinds)


def test_layouts_within_the_interval_of_the_first_are_counted():
    (told,) = sharpness(SOME, np.array([100.0, 90.0, 50.0, 80.0, 10.0]), 75.0, CLUSTER, True)
    assert told.startswith("sharpness: 3 of the 5 layouts that fit") and "pp > 1 (0), ep over nodes (8)" in told
    assert "cp > 1" not in told, "such a layout is not near the first"
    (plain,) = sharpness(SOME, np.array([100.0, 90.0, 50.0, 80.0, 10.0]), 75.0, CLUSTER, False)
    assert "measured points" not in plain
    assert sharpness(SOME.take([0]), np.array([1.0]), 0.5, CLUSTER, True) == ()


def test_a_plan_says_it():
    found = plan(sparse(), target(8, 2))
    (told,) = [note for note in found.notes if note.startswith("sharpness: ")]
    least, rates = found.best.tokens_per_s.low, [one.tokens_per_s.value for one in found.candidates if one.fits]
    assert int(told.split()[1]) >= sum(rate >= least for rate in rates) and "pp > 1 (0)" in told
    stated = plan(dense(), target(2, on=device(efficiency=0.5))).notes
    assert any(note.startswith("sharpness: ") and "measured points" not in note for note in stated)
    assert not any(note.startswith("sharpness: ") for note in plan(dense(), target(1)).notes)
