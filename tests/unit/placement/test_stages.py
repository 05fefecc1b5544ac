"""Pipeline stages: contiguous, complete, as even as they can be."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import sparse

from dayzero.errors import LayoutError
from dayzero.placement import split_layers


@given(layers=st.integers(1, 130), data=st.data())
def test_every_layer_is_on_exactly_one_stage(layers: int, data: st.DataObject) -> None:
    pp = data.draw(st.integers(1, layers))
    model = msgspec.structs.replace(sparse(), layers=sparse().layers[:1] * layers)
    stages = split_layers(model, pp)
    sizes = [stop - start for start, stop in stages]
    assert [layer for start, stop in stages for layer in range(start, stop)] == list(range(layers))
    assert len(stages) == pp
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_the_example_of_the_runtime() -> None:
    # transformers.distributed.pipeline_parallel: 32 layers on 3 ranks
    model = msgspec.structs.replace(sparse(), layers=sparse().layers[:1] * 32)
    assert split_layers(model, 3) == ((0, 11), (11, 22), (22, 32))


def test_more_stages_than_layers() -> None:
    with pytest.raises(LayoutError, match="9 stages, but the model has 8 layers"):
        split_layers(sparse(), 9)
