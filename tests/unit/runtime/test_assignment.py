"""Who does which prompts, and how many sequences a gradient batch has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dayzero.runtime.assignment import Assignment, Pass, gradient_rows, share
from dayzero.schema import Layout, from_json, to_json


@given(st.integers(1, 9), st.integers(0, 40))
def test_every_prompt_is_served_once(replicas: int, count: int) -> None:
    served = [number for replica in range(replicas) for number in share(replica, replicas, count)]
    assert sorted(served) == list(range(count))


@given(st.lists(st.integers(1, 8), min_size=1, max_size=4))
def test_the_gradient_batch_divides_evenly(degrees: list[int]) -> None:
    rows = gradient_rows(tuple(Layout(dp=degree) for degree in degrees))
    assert rows >= 2 and all(rows % degree == 0 for degree in degrees)


def test_an_assignment_survives_its_file() -> None:
    given_ = Assignment(root="r", layout=Layout(tp=2, ep=2), passes=(Pass(dtype="bf16", generate=2, dump=True),),
                        prompts=((1, 2), (3,)), max_new_tokens=3, batch=2, seed=7, gradient_rows=2)
    assert from_json(to_json(given_), Assignment) == given_
