"""Device, Link and Cluster: what a plan is made for. Every figure has a source."""

from __future__ import annotations

import math

import msgspec

from dayzero.errors import TargetError

from .base import Noun

LEAST_RATE = 1.0
"""Bytes or operations a second; real rates are at least millions. Slower ones make times that no float holds."""
LEAST_SHARE = 1e-6
"""Of the stated rates, likewise."""
NO_NETWORK = ("the network between the nodes is not described",
              "add network = {bandwidth = 50e9, latency = 10e-6} to [cluster] of a target.toml: bytes a second of each "
              "device, and seconds (docs/target.md)")
"""What is wrong where nodes are joined by nothing, and what to do."""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point")
"""What ranks do together."""


class Reached(Noun, frozen=True, kw_only=True):
    """How fast a collective was over a link. Raises TargetError for a bandwidth that is no rate."""

    bandwidth: float
    """Bytes a second that each device sends in a large one, while all devices of the link's domain take part."""
    latency: float | None = None
    """Seconds of one message of a small one: an all-reduce among n is 2 log2(n) messages after each other, a transfer
    is one, the others are log2(n). None: not known, the link's own counts."""

    def __post_init__(self) -> None:
        _check("bandwidth of a collective", self.bandwidth, LEAST_RATE)


class Link(Noun, frozen=True, kw_only=True):
    """One level of the network: the devices that it joins and how fast. Raises TargetError for a bandwidth that is no
    rate."""

    name: str
    """What it is, such as nvlink, pcie, infiniband, loopback."""
    devices: int
    """Devices that one domain of it joins; 0: all of the cluster."""
    bandwidth: float
    """Bytes a second that one device can send over it."""
    latency: float
    """Seconds that a small message takes."""
    source: str
    """Where the two figures are from."""
    shared_by: int = 1
    """Devices that share the bandwidth, such as those of one network card: when all send at once each has its part."""
    collectives: dict[str, Reached] = msgspec.field(default_factory=dict)
    """What collectives reached on it, by name (`COLLECTIVES`); empty: only the two figures are known, and nominal."""

    def __post_init__(self) -> None:
        _check(f"link {self.name}: bandwidth", self.bandwidth, LEAST_RATE)

    @property
    def measured(self) -> bool:
        """Whether the figures are what collectives reached."""
        return bool(self.collectives)


class Device(Noun, frozen=True, kw_only=True):
    """One accelerator, or one rank's share of a host. Raises TargetError for figures that are no rates."""

    name: str
    """Name that target files use."""
    vendor: str
    """Who makes it."""
    arch: str
    """Compiler's name of the architecture, such as sm_90 or gfx942."""
    memory_bytes: int
    """Memory of one device."""
    memory_bandwidth: float
    """Bytes a second."""
    flops: dict[str, float]
    """Dense matrix rate for each scheme (bf16, fp8, ...), operations a second, without sparsity."""
    fp8: str | None = None
    """Dialect of 8-bit floats: e4m3fn or e4m3fnuz; None: not supported or not known."""
    efficiency: float | None = None
    """Share of the stated rates that real kernels reach; 1.0 for measured rates; None: only the datasheet is known."""
    measured: bool = False
    """Whether all rates were measured on this machine; a datasheet or a target file never says so."""
    op_overhead: float | None = None
    """Seconds that one operator costs whatever its size; None: not known."""
    process_bytes: int = 0
    """Memory that a rank's process takes before any weight is loaded."""
    links: tuple[Link, ...] = ()
    """Levels inside one node, fastest first."""
    host_bandwidth: float | None = None
    """Bytes a second from the host's memory to one device; None: not known."""
    host_memory_bytes: int | None = None
    """Memory of the host for each device; None: not known."""
    disk_bandwidth: float | None = None
    """Bytes a second from a disk of the host to one device; None: not known."""
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    """For each figure: where it is from."""

    def __post_init__(self) -> None:
        _check(f"device {self.name}: memory_bandwidth", self.memory_bandwidth, LEAST_RATE)
        for scheme, rate in self.flops.items():
            _check(f"device {self.name}: flops.{scheme}", rate, LEAST_RATE)
        if self.efficiency is not None:
            _check(f"device {self.name}: efficiency", self.efficiency, LEAST_SHARE)

    def unlinked(self, devices: int) -> tuple[str, str]:
        """What is wrong where so many are joined by nothing, and what to do."""
        return f"device {self.name} has no link that joins {devices} devices", "add links to it, with their sources"

    def computes_in(self, scheme: str) -> str | None:
        """The entry of `flops` that products with weights of that scheme compute at; None: the device states none.

        A scheme without an entry has no unit of its own: its weights are widened to a float of 16 bits (8 and 4-bit
        weights compute in bf16), and where there is none of those either, to f32. Nothing is computed in fewer bits
        than it has: f32 is only f32.
        """
        wider = _WIDER if scheme in _NARROW or scheme.startswith("int") else ()
        return next((name for name in (scheme, *wider) if name in self.flops), None)

    def rate(self, scheme: str) -> float:
        """Operations a second for weights of that scheme, see `computes_in`. Raises TargetError if not stated."""
        name = self.computes_in(scheme)
        if name is None:
            raise TargetError(f"device {self.name} states no rate for {scheme}", "add it to flops, with its source")
        return self.flops[name]


_NARROW = ("bf16", "f16", "fp8", "mxfp8", "fp4", "mxfp4", "nvfp4", "packed")
"""Schemes of at most 16 bits, beside those of integers (int8, int4 ...)."""
_WIDER = ("bf16", "f16", "f32")


def _check(what: str, value: float, least: float) -> None:
    if not least <= value < math.inf:
        raise TargetError(f"{what} = {value:g} is not a sensible number", f"give a value of at least {least:g}")


class Cluster(Noun, frozen=True, kw_only=True):
    """Equal devices in equal nodes."""

    device: Device
    """The device."""
    devices_per_node: int
    """Devices in one node."""
    nodes: int
    """Nodes."""
    memory_utilization: float
    """Share of the device memory that weights, cache and activations may take together."""
    network: Link | None
    """What joins the nodes; None: one node, or not stated."""
    beyond: tuple[Link, ...] = ()
    """Levels above it, where its domain (`network.devices`) is not the whole cluster: racks, then what joins them."""
    overlap: float = 0.0
    """Share of the sending that can be hidden behind computing."""

    @property
    def world_size(self) -> int:
        """Devices in all."""
        return self.devices_per_node * self.nodes

    @property
    def usable_bytes(self) -> int:
        """Bytes of one device that may be used."""
        return int(self.device.memory_bytes * self.memory_utilization)

    def link(self, devices: int) -> Link:
        """The slowest link that a group of that many neighbouring devices needs, the world being dealt out to such
        groups in order. Raises TargetError if not stated."""
        node = self.devices_per_node
        if not _stays_inside(devices, node, self.world_size):
            if self.network is None:
                raise TargetError(*NO_NETWORK)
            between = (self.network, *self.beyond)
            return next((link for link in between if link.devices == 0 or _stays_inside(
                devices, link.devices, self.world_size)), between[-1])
        for link in self.device.links:
            if link.devices == 0 or _stays_inside(devices, link.devices, node):
                return link
        raise TargetError(*self.device.unlinked(devices))


def _stays_inside(group: int, domain: int, whole: int) -> bool:
    """Whether each of the groups that `whole` devices are dealt out to, in order, lies in one domain: where there are
    several domains, the group has to divide the domain, or one of them lies across an edge."""
    return group <= domain and (domain >= whole or domain % group == 0)
