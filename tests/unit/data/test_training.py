"""What is reached of stated rates: figures that are possible, and an entry for every architecture."""

from dayzero.data.training import Reached, generation, generations, grouped_since

CAN_HIDE = {"surface", "cast", "inside", "network", "dispatch", "dispatch_network"}
"""Shares of what computing can hide, which may be above 1."""


def test_shares_are_possible():
    for one in generations():
        for name in Reached.__struct_fields__:
            share = getattr(one.reached, name)
            assert 0 < share <= (3 if name in CAN_HIDE else 1), (one.name, name)
        assert 0.02 < one.spread <= one.spread_experts < 1


def test_every_architecture_has_one_generation_and_the_last_is_for_others():
    named = [arch for one in generations() for arch in one.archs]
    assert len(named) == len(set(named))
    assert generation("sm_90").name == "hopper"
    assert generation("gfx950") is generations()[-1] and not generations()[-1].archs


def test_nine_tenths_are_wider_where_experts_are():
    known = generation("sm_90")
    assert 1 < known.within(False) < known.within(True)


def test_the_date_of_grouped_kernels_is_a_year_and_month():
    assert len(grouped_since().split(".")) == 2
