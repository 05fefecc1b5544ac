"""The topology library: files come back as they were, damaged ones are told, clusters take what describes them."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from tests.support.topologies import measured

from dayzero.data import device
from dayzero.data import topologies as library
from dayzero.errors import StoreError, TargetError
from dayzero.schema import COLLECTIVES, Cluster, Link
from dayzero.stages.plan.times.collectives import fabric

IB = Link(name="infiniband", devices=0, bandwidth=50e9, latency=1e-5, source="")


def cluster(nodes: int = 2, node: int = 8, network: Link | None = IB, name: str = "h200") -> Cluster:
    return Cluster(device=device(name), devices_per_node=node, nodes=nodes, memory_utilization=0.9, network=network)


def test_a_file_comes_back(tmp_path: Path) -> None:
    made = measured()
    place = library.file_topology(made, tmp_path)
    assert place.name == f"{made.name}.topology.json" and library.read_topology(place) == made
    assert library.file_topology(made, tmp_path) == place and len(list(tmp_path.iterdir())) == 1
    assert library.measured(tmp_path) == (made,)
    with pytest.raises(StoreError, match="there is no topology library in"):
        library.measured(tmp_path / "none")
    lines = place.read_text().splitlines()
    assert len(lines) > 100 and max(map(len, lines)) < 120  # one figure a line, for a repository


@pytest.mark.parametrize("damage", [lambda text: text[:-30], lambda text: text.replace("360000000000.0", "999.5"),
                                    lambda text: "[1]", lambda text: "\x00\xff", lambda text: "[" * 100_000])
def test_damage_is_told(tmp_path: Path, damage) -> None:
    place = library.file_topology(measured(), tmp_path)
    place.write_text(damage(place.read_text()))
    with pytest.raises(StoreError) as caught:
        library.measured(tmp_path)
    assert str(place) in caught.value.message and "\n" not in caught.value.message and caught.value.hint


@pytest.mark.parametrize(("change", "told"), [
    (lambda one: {"levels": one["levels"][::-1]}, "no whole number of domains"),
    (lambda one: {"levels": [{**one["levels"][0], "timings": []}]}, "neither timed nor published"),
    (lambda one: {"levels": [{**one["levels"][0], "reached": {}}]}, "joins nothing"),
    (lambda one: {"levels": [{**one["levels"][0], "reached": {"gossip": {"bandwidth": 1e9}}}]}, "no collective"),
    (lambda one: {"levels": [{**one["levels"][0], "reached": {"all_reduce": {"bandwidth": 1e9, "latency": -1}}}]},
     "latency of -1 s"),
    (lambda one: {"levels": [{**one["levels"][0], "reached": {"all_reduce": {"bandwidth": 0}}}]}, "not a sensible"),
    (lambda one: {"nodes": 0}, "0 nodes"), (lambda one: {"devices_per_node": -8}, "nodes of -8 devices"),
    (lambda one: {"figures": [{**one["figures"][0], "value": 0}]}, "host_to_device.pinned is 0 B/s")])
def test_figures_that_are_none_are_told(tmp_path: Path, change, told: str) -> None:
    """Whoever wrote the file: a negative latency would make a plan's times negative."""
    content = msgspec.to_builtins(measured())
    filed = {"digest": "", "topology": content | change(content)}
    (tmp_path / "x.topology.json").write_bytes(msgspec.json.encode(filed))
    with pytest.raises(StoreError, match=told) as caught:
        library.measured(tmp_path)
    assert "\n" not in caught.value.message


def test_a_pipe_in_the_library_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.topology.json")
    with pytest.raises(StoreError, match="not an ordinary file"):
        library.measured(tmp_path)


def test_a_library_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write the topology library"):
        library.check_library(tmp_path / "file" / "below")
    library.check_library(tmp_path / "new" / "library")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_names(tmp_path: Path) -> None:
    made = measured()
    place = library.file_topology(made, tmp_path)
    assert library.topology(made.name, Path(), tmp_path) == made
    assert library.topology(place.name, tmp_path) == made
    assert library.topology("mi300x-xgmi", Path()).device == "mi300x"
    with pytest.raises(TargetError, match="no topology is named 'mi300x-xgm'") as caught:
        library.topology("mi300x-xgm", Path())
    assert 'did you mean "mi300x-xgmi"' in caught.value.hint


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert library.library_folder() == tmp_path / "dayzero" / "topologies"
    assert library.measured() == ()
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert library.library_folder() == tmp_path / ".local" / "share" / "dayzero" / "topologies"
    assert library.library_folder(Path("own")) == Path("own")


def test_a_cluster_finds_its_measurement(tmp_path: Path) -> None:
    older, newer = measured(date="2026-01-02"), measured(date="2026-02-02")
    others = [measured("h100"), measured(nodes=4, network="roce"), measured(node=4), measured(nodes=1)]
    for one in (older, newer, *others):
        library.file_topology(one, tmp_path)
    assert library.matching(cluster(), tmp_path) == newer
    assert library.matching(cluster(nodes=4, network=msgspec.structs.replace(IB, name="roce")), tmp_path) == others[1]
    assert library.matching(cluster(network=msgspec.structs.replace(IB, name="ethernet")), tmp_path) == others[3]
    assert library.matching(cluster(name="mi355x"), tmp_path) is None


def test_measured_links_take_the_place_of_nominal_ones() -> None:
    found = library.applied(cluster(), measured())
    (inside,) = found.device.links
    assert (inside.devices, inside.bandwidth, inside.latency, set(inside.collectives)) == (
        8, 360e9, 3e-6, set(COLLECTIVES))
    assert found.network is not None and (found.network.devices, found.network.bandwidth) == (0, 40e9)
    assert inside.measured and "measured by dayzero on 2026-01-02, b: groups of 8, 5 rounds" in inside.source
    assert (found.device.host_bandwidth, found.device.disk_bandwidth) == (5.2e10, 6e9)
    assert library.applied(cluster(), measured(nodes=1)).network is IB
    with pytest.raises(TargetError, match="of nodes of 4 devices, but devices_per_node = 8"):
        library.applied(cluster(), measured(node=4))


def test_a_topology_of_another_device_says_so() -> None:
    (own,), (others,) = (library.applied(cluster(name=name), measured()).device.links for name in ("h200", "h100"))
    assert "of h200 and not h100" in others.source and "not" not in own.source


def test_a_part_of_a_node_has_its_links(tmp_path: Path) -> None:
    made = measured(nodes=1)
    library.file_topology(made, tmp_path)
    part = cluster(nodes=1, node=4, network=None)
    assert library.matching(part, tmp_path) == made
    assert [(level.domain, level.measured) for level in fabric(library.applied(part, made), "all_reduce").levels] == [
        (4, True)]
    assert library.matching(cluster(nodes=2, node=4), tmp_path) is None


def test_what_a_source_published_leaves_the_rest() -> None:
    found = library.applied(cluster(name="h800"), library.topology("h800-nvlink-ib400", Path()))
    (inside,), stated = found.device.links, device("h800").links[0]
    assert (inside.bandwidth, inside.latency) == (stated.bandwidth, stated.latency)
    assert inside.collectives["all_to_all"].bandwidth == 153e9 and inside.collectives["all_to_all"].latency is None


def test_published_facts() -> None:
    """Each has a source, is of a shipped device, and is no faster than the datasheet's link unless switches add up."""
    for one in library.published():
        assert one.source and one.levels and not one.name.endswith(one.date or "-")
        stated = device(one.device).links
        for level in one.levels:
            assert level.devices <= one.nodes * one.devices_per_node and set(level.reached) <= set(COLLECTIVES)
            for name, reached in level.reached.items():
                if level.devices <= one.devices_per_node and name != "all_reduce":
                    assert reached.bandwidth <= stated[0].bandwidth
