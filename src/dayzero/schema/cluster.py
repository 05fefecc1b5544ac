"""What a user says of devices and what joins them: [cluster] of a target.toml."""

from __future__ import annotations

from .base import Request


class DeviceRequest(Request, frozen=True, kw_only=True):
    """[cluster] device as an inline table, for a device that dayzero does not ship."""

    memory_bytes: int
    """Memory of one device."""
    memory_bandwidth: float
    """Bytes a second."""
    flops: dict[str, float]
    """Dense matrix rate for each scheme, operations a second."""
    name: str = "custom"
    """Name for reports."""
    vendor: str = ""
    """Who makes it."""
    arch: str = ""
    """Compiler's name of the architecture."""
    fp8: str | None = None
    """e4m3fn or e4m3fnuz."""
    efficiency: float | None = None
    """Share of the stated rates that real kernels reach."""
    op_overhead: float | None = None
    """Seconds that one operator costs whatever its size."""
    process_bytes: int = 0
    """Memory that a rank's process takes before any weight is loaded."""
    links: list[LinkRequest] = []
    """Levels inside one node, fastest first."""
    host_bandwidth: float | None = None
    """Bytes a second from the host's memory to one device."""
    host_memory_bytes: int | None = None
    """Memory of the host for each device."""
    disk_bandwidth: float | None = None
    """Bytes a second from a disk of the host to one device."""
    source: str = "target file"
    """Where the figures are from."""


class LinkRequest(Request, frozen=True, kw_only=True):
    """One level of the network."""

    bandwidth: float
    """Bytes a second that one device can send."""
    latency: float
    """Seconds that a small message takes."""
    name: str = "network"
    """What it is."""
    devices: int = 0
    """Devices that one domain joins; 0: all."""
    shared_by: int = 1
    """Devices that share the bandwidth, such as those of one network card: when all send at once each has its part."""
    source: str = "target file"
    """Where the figures are from."""


class ClusterRequest(Request, frozen=True, kw_only=True):
    """[cluster]"""

    device: str | DeviceRequest
    """Name of a shipped device, `local` (this machine, measured), or an inline table."""
    devices_per_node: int = 1
    """Devices in one node."""
    nodes: int = 1
    """Nodes."""
    memory_utilization: float = 0.9
    """Share of the device memory that the engine may take."""
    network: LinkRequest | list[LinkRequest] | None = None
    """[cluster.network]: what joins the nodes; [[cluster.network]]: several levels, the innermost first, each but the
    last with the `devices` that one domain of it joins. Absent: the device's own statement, if it has one."""
    topology: str | None = None
    """Measured links: a name in the topology library (`dayzero probe --list`), or the path (from the target's folder)
    of a file that `dayzero probe` wrote; `nominal`: no measurement. Absent: a measurement of such a cluster, if any."""
    overlap: float = 0.0
    """Share of the sending that the engine hides behind computing."""
