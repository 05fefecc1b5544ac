"""What a way to train comes to, and where groups of ranks lie."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import target

from dayzero.data.training import generation
from dayzero.errors import LayoutError
from dayzero.schema import Layout
from dayzero.schema.hardware import Reached
from dayzero.stages.plan.training.setup import Setup
from dayzero.stages.plan.training.topology import all_to_all, group, over, ring

CLUSTER = target(8, 4).cluster  # links of 100 GB/s inside nodes of 8, 20 GB/s between


def test_context_parallel_ranks_come_out_of_dp():
    setup = Setup(layout=Layout(tp=2, pp=2, dp=8, cp=4), sequence=8192, micro_batch=2, global_batch=64)
    assert (setup.replicas, setup.micro_batches, setup.rows, setup.tokens) == (2, 16, 4096, 64 * 8192)


@pytest.mark.parametrize(("layout", "batch"), [(Layout(dp=8), 12), (Layout(dp=6, cp=4), 24)])
def test_batches_that_cannot_be_shared(layout, batch):
    with pytest.raises(LayoutError):
        Setup(layout=layout, sequence=128, micro_batch=1, global_batch=batch)


@pytest.mark.parametrize(("ranks", "stride", "inside", "nodes"), [
    (8, 1, 8, 1), (16, 1, 8, 2), (4, 8, 1, 4), (8, 4, 2, 4), (2, 4, 2, 1), (12, 1, 6, 2)])
def test_groups(ranks, stride, inside, nodes):
    found = group(ranks, stride, CLUSTER)
    assert (found.inside, found.nodes) == (inside, nodes)


def test_a_ring_takes_the_slower_of_link_and_shared_ports():
    assert ring(1e9, group(8, 1, CLUSTER), CLUSTER) == (0.01, 0.0)
    assert ring(1e9, group(4, 8, CLUSTER), CLUSTER) == (0.0, 0.05)  # one rank of a node has one port
    assert ring(1e9, group(32, 1, CLUSTER), CLUSTER) == (0.0, 0.01)  # eight share eight ports: the link is slower
    assert ring(1e9, group(1, 1, CLUSTER), CLUSTER) == (0.0, 0.0)


def test_rows_go_once_to_each_node_and_rank():
    within, across = all_to_all(1e9, 1, group(8, 1, CLUSTER), CLUSTER)
    assert (within, across) == (pytest.approx(1e9 * 7 / 8 / 1e11), 0.0)
    within, across = all_to_all(1e9, 1, group(32, 1, CLUSTER), CLUSTER)
    assert across == pytest.approx(1e9 * 3 / 4 / 2e10)


def test_what_collectives_reached_is_the_rate_of_a_link():
    slow = {"all_reduce": Reached(bandwidth=4e10), "all_to_all": Reached(bandwidth=1e10)}
    inside = msgspec.structs.replace(CLUSTER.device.links[0], collectives=slow)
    measured = msgspec.structs.replace(CLUSTER, device=msgspec.structs.replace(CLUSTER.device, links=(inside,)))
    assert ring(1e9, group(8, 1, measured), measured) == (1e9 / 4e10, 0.0)
    assert all_to_all(1e9, 1, group(8, 1, measured), measured)[0] == pytest.approx(1e9 * 7 / 8 / 1e10)
    fitted = msgspec.structs.replace(generation("sm_100").reached, inside=0.7, network=0.6, dispatch=1.2)
    shares = over(fitted, measured)
    assert (shares.inside, shares.network, shares.dispatch) == (1.0, 0.6, 1.2)


def test_devices_that_share_a_card_have_a_part_of_it():
    card = msgspec.structs.replace(CLUSTER.network, shared_by=4)
    shared = msgspec.structs.replace(CLUSTER, network=card)
    assert ring(1e9, group(4, 8, shared), shared) == (0.0, 0.2)  # 20 GB/s for four


@pytest.mark.parametrize("ranks", [1, 2, 6, 8, 16, 32])
def test_groups_of_many_layouts_are_those_of_each(ranks):
    strides = np.array([1, 2, 3, 4, 8, 16])
    found = group(np.full(6, ranks), strides, CLUSTER)
    assert [(one.inside, one.nodes) for one in (group(ranks, int(stride), CLUSTER) for stride in strides)] == [
        *zip(found.inside.tolist(), found.nodes.tolist(), strict=True)]


@given(st.integers(1, 64), st.sampled_from((2, 4, 8, 16, 32)))
def test_more_visits_never_send_less_and_at_most_a_copy_to_each_rank(visits, ranks):
    members = group(ranks, 1, CLUSTER)
    less, more = (sum(all_to_all(1e9, count, members, CLUSTER)) for count in (visits, visits + 1))
    assert less <= more <= 1e9 * (ranks - 1) / 1e11 + 1e9 * (members.nodes - 1) / 2e10 + 1e-12
