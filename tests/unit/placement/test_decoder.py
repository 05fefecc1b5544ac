"""A decoder from its sizes, against published parameter counts."""

import pytest

from dayzero.placement.decoder import plain_decoder


@pytest.mark.parametrize(("hidden", "layers", "heads", "published"), [
    (12288, 96, 96, 175e9),  # arXiv:2005.14165, table 2.1
    (20480, 105, 128, 530e9),  # arXiv:2201.11990
    (25600, 128, 160, 1008e9),  # arXiv:2104.04473, table 1
])
def test_parameters(hidden, layers, heads, published):
    model = plain_decoder("any", hidden=hidden, layers=layers, heads=heads)
    assert model.parameters == pytest.approx(published, rel=0.01)


def test_parameters_of_a_layer_and_the_ends():
    model = plain_decoder("any", hidden=128, layers=3, heads=2, vocab=1000)
    assert model.parameters == 3 * (12 * 128**2 + 2 * 128) + 1000 * 128 + 128
    assert model.attentions["full"].head_dim == 64 and model.tied_embeddings
