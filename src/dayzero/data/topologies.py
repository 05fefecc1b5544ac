"""The topology library: what `dayzero probe` measured, one small file each, and what sources published.

    {"digest": SHA-256 of the JSON of the topology, "topology": {...}}

Files are indented and sorted, so that they can be kept in a repository: two that are added on two branches do not meet.
`topology.toml`, which is shipped, has effective rates that were published, each with its source.
"""

from __future__ import annotations

import os
import tempfile
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec

from dayzero.errors import StoreError, TargetError, did_you_mean
from dayzero.schema import Cluster, Link, digest, from_json
from dayzero.schema.store import write_atomic
from dayzero.schema.topology import Level, Topology

ENDING = ".topology.json"
_LIMIT = 2**22
"""Bytes of one file."""
NOMINAL = "nominal"
"""What a target says that wants no measurement."""


class Filed(msgspec.Struct, frozen=True, kw_only=True):
    """What a file of the library holds."""

    digest: str
    topology: Topology


def library_folder(library: Path | None = None) -> Path:
    """`library`, or dayzero's folder below $XDG_DATA_HOME (~/.local/share; a relative one counts for nothing, as its
    specification says). For a user without a home it is below the system's temporary folder."""
    stated = Path(os.environ.get("XDG_DATA_HOME", ""))
    home = Path(os.path.expanduser("~"))
    home = home / ".local" / "share" if home.is_absolute() else Path(tempfile.gettempdir(), f"dayzero-{os.getuid()}")
    return library or (stated if stated.is_absolute() else home) / "dayzero" / "topologies"


def check_library(folder: Path) -> None:
    """Raise StoreError unless files can be added to the library, which may not be there yet. Nothing is left."""
    absent = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        for each in absent:
            each.rmdir()
    except OSError as error:
        raise StoreError(f"cannot write the topology library {folder}: {error.strerror}",
                         "give another folder with --library, or a file with --out") from None


def file_topology(topology: Topology, path: Path) -> Path:
    """Write a topology to `path`, or into the folder `path` under its name; where it is. Raises StoreError."""
    place = path / f"{topology.name}{ENDING}" if path.is_dir() else path
    text = msgspec.json.format(msgspec.json.encode(Filed(digest=digest(topology), topology=topology),
                                                   order="deterministic"), indent=1)
    write_atomic(place, text + b"\n")
    return place


def read_topology(path: Path) -> Topology:
    """The topology of a file. Raises StoreError unless it is one, whole and as it was written."""
    again = "measure again with `dayzero probe`, or remove the file"
    try:
        if path.exists() and not path.is_file():  # a pipe would never end
            raise StoreError(f"{path} is no topology: it is not an ordinary file", again)
        with path.open("rb") as file:
            content = file.read(_LIMIT + 1)
        filed = from_json(content, Filed)
    except OSError as error:
        raise StoreError(f"cannot read the topology {path}: {error.strerror}", again) from None
    except TargetError as error:
        raise StoreError(f"{path} is no topology: {error.message.removeprefix('no topology: ')}", again) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path} is no topology: {error}", again) from None
    if digest(filed.topology) != filed.digest:
        raise StoreError(f"{path} was changed after it was measured: its digest is another", again)
    return filed.topology


def measured(library: Path | None = None) -> tuple[Topology, ...]:
    """All topologies of the library, the oldest first; none where dayzero's own folder is not there yet. Raises as
    `read_topology`, and StoreError for a `library` that is no folder."""
    folder = library_folder(library)
    if library and not folder.is_dir():
        raise StoreError(f"there is no topology library in {library}", "give --library a folder that is there")
    found = [read_topology(path) for path in sorted(folder.glob(f"*{ENDING}"))] if folder.is_dir() else []
    return tuple(sorted(found, key=lambda one: (one.date, one.name)))


@cache
def published() -> tuple[Topology, ...]:
    """What sources published, as it is shipped."""
    content = tomllib.loads(files(__package__).joinpath("topology.toml").read_text())
    return msgspec.convert(content["topologies"], tuple[Topology, ...])


def topology(name: str, base: Path, library: Path | None = None) -> Topology:
    """The topology that a target names: a file, by its path from `base`, or one of the library, or a published one.
    Raises TargetError for a name that is none, StoreError for a damaged file."""
    path = base / Path(name).expanduser()
    if name.endswith(".json") or path.is_file():
        return read_topology(path)
    known = {one.name: one for one in (*published(), *measured(library))}
    if name not in known:
        raise TargetError(f"no topology is named {name!r}", f"{did_you_mean(name, known)}"
                          f"known: {', '.join([*known, NOMINAL])}; `dayzero probe` measures one")
    return known[name]


def matching(cluster: Cluster, library: Path | None = None) -> Topology | None:
    """The measurement that describes a cluster: of the same device, nodes (see `_covers`) and, where it spans nodes,
    kind of network; of several the one of the same nodes, then of most nodes, then the latest. None: there is none."""
    network, node = cluster.network.name if cluster.network else "", cluster.devices_per_node
    alike = [one for one in measured(library) if one.device == cluster.device.name and _covers(one, cluster)
             and (one.nodes == 1 or not one.network or one.network == network)]
    return max(alike, key=lambda one: (one.devices_per_node == node, min(one.nodes, cluster.nodes), one.date),
               default=None)


def _covers(found: Topology, cluster: Cluster) -> bool:
    """Whether its nodes have as many devices, or the cluster is a part of one of them."""
    node = cluster.devices_per_node
    return found.devices_per_node == node or (cluster.nodes == 1 and found.devices_per_node > node)


def applied(cluster: Cluster, found: Topology) -> Cluster:
    """The cluster with what a topology says of its links and hosts; what it does not say stays. Raises TargetError for
    a topology of other nodes."""
    node, whole = cluster.devices_per_node, found.devices_per_node
    if not _covers(found, cluster):
        raise TargetError(f"topology {found.name} is of nodes of {found.devices_per_node} devices, but "
                          f"devices_per_node = {node}", f'measure one with `dayzero probe`, or write "{NOMINAL}"')
    other = "" if found.device == cluster.device.name else f", of {found.device} and not {cluster.device.name}"
    inside = [_link(level, found, _stated(cluster, level.devices), other) for level in found.levels
              if level.devices <= whole]
    between = [_link(level, found, cluster.network, other) for level in found.levels
               if level.devices > whole and cluster.nodes > 1]
    if between:
        between[-1] = msgspec.structs.replace(between[-1], devices=0)
    elif cluster.network:
        between = [cluster.network, *cluster.beyond]
    device = msgspec.structs.replace(
        cluster.device, links=tuple(inside) or cluster.device.links,
        host_bandwidth=cluster.device.host_bandwidth or found.figure("host_to_device.pinned"),
        disk_bandwidth=cluster.device.disk_bandwidth or found.figure("disk_read.cold"))
    return msgspec.structs.replace(cluster, device=device, network=between[0] if between else None,
                                   beyond=tuple(between[1:]))


def _stated(cluster: Cluster, devices: int) -> Link | None:
    """The stated link that joins so many devices of a node."""
    return next((link for link in cluster.device.links if not link.devices or link.devices >= devices), None)


def _link(level: Level, found: Topology, stated: Link | None, other: str) -> Link:
    """A level as a link. Its own two figures are of what nobody measured: those of the all-reduce, else the stated.
    `other`: what is said of a topology of another device."""
    first = level.reached.get("all_reduce")
    latency = first.latency if first and first.latency is not None else stated.latency if stated else 0.0
    bandwidth = first.bandwidth if first else stated.bandwidth if stated else min(
        reached.bandwidth for reached in level.reached.values())
    said = found.source or f"measured by dayzero on {found.date}, {found.backend}: {_quality(level)}"
    return Link(name=level.name, devices=level.devices, bandwidth=bandwidth, latency=latency,
                collectives=level.reached, source=f"topology {found.name}{other}: {said}")


def _quality(level: Level) -> str:
    """How well a measured level is known."""
    worst = max(timing.residual for timing in level.timings)
    return f"groups of {level.timings[0].ranks}, {level.timings[0].rounds} rounds, lines off by up to {worst:.0%}"
