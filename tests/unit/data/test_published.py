"""Published models that come along: every card is read and says where it is from."""

import pytest

from dayzero.data.published import published, stated_models
from dayzero.stages.read import read


@pytest.mark.parametrize(("stem", "parameters"), [
    # figures of the model cards
    ("nemotron-3-nano", 31.6e9), ("nemotron-3-super", 120.7e9), ("nemotron-3-ultra", 549e9),
    ("moonlight-16b-a3b", 16.0e9)])
def test_cards(stem, parameters):
    (path,) = (path for path in published() if path.stem == stem)
    assert read(str(path)).model.parameters == pytest.approx(parameters, rel=0.01)
    assert "sources" in path.read_text()


def test_decoders_have_whole_heads():
    for name, sizes in stated_models().items():
        assert sizes["hidden"] % sizes["heads"] == 0, name
