"""Levels from pairs: nodes, switches inside of them, domains that are larger than a host, noise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.errors import UsageError
from dayzero.runtime.probe.levels import Pair, domains, edges, groups, on_host, pairs, stated


def times(ranks: int, on_host: int, bounds: dict[int, Pair], noise: float = 1.0) -> dict[tuple[int, int], Pair]:
    """Seconds of a pair: those of the smallest domain of `bounds` that holds both."""
    def of(first: int, second: int) -> Pair:
        domain = min(size for size in bounds if first // size == second // size)
        factor = noise if (first + second) % 2 else 1.0
        return Pair(*(seconds * factor for seconds in bounds[domain]))

    return {pair: of(*pair) for pair in pairs(ranks, on_host)}


FAST, MIDDLE, SLOW = Pair(1e-5, 1e-4), Pair(1.2e-5, 5e-4), Pair(3e-5, 1e-3)


@pytest.mark.parametrize(("ranks", "on_host", "bounds", "found"), [
    (2, 2, {2: FAST}, (2,)), (16, 8, {8: FAST, 16: SLOW}, (8, 16)), (8, 8, {8: FAST}, (8,)),
    (16, 8, {2: FAST, 8: MIDDLE, 16: SLOW}, (2, 8, 16)),  # bridges between pairs
    (16, 4, {16: FAST}, (16,)),  # a switch that joins hosts
    (12, 6, {6: FAST, 12: SLOW}, (6, 12)), (72, 4, {72: FAST}, (72,)),
    (64, 8, {8: FAST, 32: MIDDLE, 64: SLOW}, (8, 32, 64)),  # racks of four nodes
])
@pytest.mark.parametrize("noise", [1.0, 1.3])
def test_edges_are_found(ranks: int, on_host: int, bounds: dict[int, Pair], found: tuple[int, ...],
                         noise: float) -> None:
    assert domains(ranks, on_host, times(ranks, on_host, bounds, noise)) == found


def test_latency_alone_tells_levels_apart() -> None:
    assert domains(8, 4, times(8, 4, {4: Pair(1e-6, 1e-4), 8: Pair(1e-5, 1e-4)})) == (4, 8)
    assert domains(1, 1, {}) == ()


@given(ranks=st.integers(1, 600), on_host=st.integers(1, 16))
def test_few_pairs_and_all_in_range(ranks: int, on_host: int) -> None:
    chosen = pairs(ranks, on_host)
    assert len(chosen) <= 42 and all(0 <= first < second < ranks for first, second in chosen)
    assert all(ranks % size == 0 for size in edges(ranks, on_host))


def test_groups_of_a_level() -> None:
    assert groups(8, 1, 4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups(8, 4, 8) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_stated_domains() -> None:
    assert stated((2, 4, 64), 4) == (2, 4)
    assert stated((), 4) == stated((2,), 1) == ()
    for wrong in ((3,), (2, 3), (4, 2)):
        with pytest.raises(UsageError, match="no whole domains"):
            stated(wrong, 16)


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_levels_are_whole_domains_of_those_below(hosts: int, on_one: int, data: st.DataObject) -> None:
    """Whatever pairs take: so each rank has a group of equal size in every level."""
    seconds = st.floats(1e-6, 1e-2)
    measured = {pair: Pair(data.draw(seconds), data.draw(seconds)) for pair in pairs(hosts * on_one, on_one)}
    below = 1
    for domain in domains(hosts * on_one, on_one, measured):
        assert domain % below == 0 and (domain % on_one == 0 or on_one % domain == 0)
        assert {len(group) for group in groups(hosts * on_one, below, domain)} == {domain // below}
        below = domain


def test_hosts_have_equal_numbers_of_ranks_in_order() -> None:
    assert (on_host(["a"]), on_host(["a", "a", "b", "b"]), on_host(["a", "b"])) == (1, 2, 1)
    for hosts in (["a", "a", "b"], ["a", "b", "a", "b"], ["a", "b", "b", "b"], ["a", "a", "b", "c"]):
        with pytest.raises(UsageError, match=r"not numbered host by host.*on [23] hosts"):
            on_host(hosts)
