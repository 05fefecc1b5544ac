"""The smallest cluster: sizes rise, the first that fits and the first within the limits are told apart."""

import msgspec
from tests.support.plan_models import target

from dayzero.schema import Layout, Limits
from dayzero.stages.plan.choice.smallest import Found, sizes, smallest


def needing(devices, within=0):
    """A model that fits from so many devices on, and keeps to the limits from `within` devices on."""
    def best(on):
        world = on.cluster.world_size
        return Found(Layout(tp=world), within / world, {"tpot_s": 1 / world}) if world >= devices else None
    return best


def world(found):
    return [(one.works, one.nodes, one.devices_per_node) for one in found]


def test_sizes_rise_by_devices_and_then_by_nodes():
    found = [cluster.world_size for cluster in sizes(target(8, 4).cluster, 128)]
    assert found == [1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 48, 64, 96, 128]
    lonely = msgspec.structs.replace(target(4).cluster, network=None)
    assert [cluster.world_size for cluster in sizes(lonely)] == [1, 2, 3, 4]


def test_the_first_that_fits():
    assert world(smallest(target(8, 1), needing(5))) == [("fits", 1, 5)]
    found = smallest(target(8, 1), needing(17))
    assert world(found) == [("fits", 3, 8)] and found[0].layout == Layout(tp=24) and found[0].devices == 24


def test_the_first_within_the_limits():
    on = msgspec.structs.replace(target(8, 1), limits=Limits(tpot_s=0.05))
    assert world(smallest(on, needing(2, within=20))) == [("fits", 1, 2), ("within limits", 3, 8)]
    assert world(smallest(on, needing(2, within=2))) == [("fits", 1, 2), ("within limits", 1, 2)]


def test_what_is_not_found_says_how_far_was_looked():
    found = smallest(msgspec.structs.replace(target(8), limits=Limits(devices=4, tpot_s=1.0)), needing(5))
    assert [one.layout for one in found] == [None, None]
    assert [one.reason for one in found] == ["of up to 4 devices"] * 2
    near = smallest(msgspec.structs.replace(target(8), limits=Limits(devices=4, tpot_s=1.0)), needing(2, within=5))
    assert near[0].layout == Layout(tp=2) and near[1].reason == (
        "of up to 4 devices; tp=4 on 4 comes nearest, 25% over")
    alone = target(2)
    alone = msgspec.structs.replace(alone, cluster=msgspec.structs.replace(alone.cluster, network=None))
    assert "the network that would join more nodes is not stated" in smallest(alone, needing(3))[0].reason
