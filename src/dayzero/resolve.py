"""From target.toml to a Target with every default filled in; whatever a user got wrong in it is said here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from dayzero.data.causes import FACTORS
from dayzero.data.devices import FP8_DIALECTS, LOCAL, device
from dayzero.data.engines import resolve_engine
from dayzero.data.precisions import precision, precision_names
from dayzero.data.topologies import NOMINAL, applied, matching, topology
from dayzero.data.topologies import measured as measured_topologies
from dayzero.errors import LayoutError, ReleaseError, TargetError, did_you_mean
from dayzero.schema import Cluster, Device, Engine, Layout, Limits, Link, Target, TargetRequest, Workload, digest
from dayzero.schema.calibration import Calibration
from dayzero.schema.cluster import ClusterRequest, DeviceRequest, LinkRequest
from dayzero.schema.store import write_atomic
from dayzero.schema.target import (
    EngineRequest,
    LayoutRequest,
    LimitsRequest,
    Operators,
    OperatorsRequest,
    ReleaseRequest,
    Waiver,
    WorkloadRequest,
)
from dayzero.schema.topology import Topology
from dayzero.stages.read.folder import read_bounded

DEFAULT_WORKLOAD = "default (docs/numbers.md)"
_EXAMPLES = "the files in examples/targets show what a target looks like"
_A_WAIVER = "a waiver has rule, reason and expires (a date like 2026-12-31), and may have subject"
_ZERO_IS_FINE = ("process_bytes", "latency", "op_overhead", "links.devices", "network.devices", "cluster.overlap",
                 "prefix_hit", "draft_tokens")
_MOST = 2**50
"""Larger numbers than this are typing errors: it is a petabyte, or a quadrillion tokens."""
_MOST_DEVICES = 2**20
"""Likewise for the devices of a cluster."""
_MOST_INTEGER = 2**63 - 1
"""What JSON of 64-bit integers holds."""
_FILE_LIMIT = 2**20
_LEAST_FACTOR = 0.01
"""Of a calibration; and one through it is the largest."""
_TABLES: dict[str, type[msgspec.Struct]] = {
    "": TargetRequest, "release": ReleaseRequest, "cluster": ClusterRequest, "cluster.device": DeviceRequest,
    "cluster.device.links": LinkRequest, "cluster.network": LinkRequest, "engine": EngineRequest,
    "layout": LayoutRequest, "workload": WorkloadRequest, "limits": LimitsRequest,
    "operators": OperatorsRequest, "calibration": Calibration, "waivers": Waiver,
}
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>.*?)`(?: - at `\$\.?(?P<path>.*?)`)?$")
_PLACE = re.compile(r"(?P<what>.*?) - at `\$\.?(?P<path>.*?)`$")


def resolve_target(path: Path, *, measured: Callable[[int], Device] | None = None) -> Target:
    """The target that a file describes. `measured(ranks)` gives one rank's share of this host, for device = "local".

    Raises TargetError for anything wrong in the file, LayoutError for a layout that does not fit the cluster.
    """
    request = check_target(path)
    return Target(
        name=path.stem, cluster=_cluster(path, request.cluster, measured), engine=_engine(path, request),
        workload=_workload(request.workload), limits=Limits(**msgspec.structs.asdict(request.limits)),
        operators=Operators(times=request.operators.times, tables=tuple(
            str((path.parent / Path(table).expanduser()).resolve()) for table in request.operators.tables)),
        layouts=_layouts(request), partial=request.release.partial, waivers=_waivers(path, request.waivers),
        calibration=request.calibration)


def check_target(path: Path, content: bytes | None = None) -> TargetRequest:
    """What a file asks for, once everything is right that can be told without measuring. `content`: what is to become
    the file. Raises as resolve_target."""
    request = _parse(path, content)
    _stated(path, request.cluster)
    _check_workload(path, request.workload or WorkloadRequest())
    resolve_engine(request.engine, path.parent)
    _topology(path, request.cluster)
    _layouts(request)
    _waivers(path, request.waivers)
    _check_calibration(path, request.calibration)
    return request


def _check_calibration(path: Path, given: Calibration | None) -> None:
    for cause, factor in (given.factors if given else {}).items():
        if cause not in FACTORS:
            raise TargetError(f"{path}: unknown cause {cause!r} in [calibration]",
                              f"{did_you_mean(cause, FACTORS)}known: {', '.join(FACTORS)}")
        if not _LEAST_FACTOR < factor < 1 / _LEAST_FACTOR:
            raise TargetError(f"{path}: calibration.factors.{cause} = {factor:g} is not a sensible factor",
                              f"give one between {_LEAST_FACTOR:g} and {1 / _LEAST_FACTOR:g}")


def _check_workload(path: Path, workload: WorkloadRequest) -> None:
    if workload.kind == "train" and not workload.global_batch:
        raise TargetError(f"{path}: the batch of a training step is not stated", "add global_batch to [workload]")
    if workload.prefix_hit >= 1:
        raise TargetError(f"{path}: workload.prefix_hit = {workload.prefix_hit:g} leaves nothing to compute",
                          "it is a share of the prompt's tokens: give a value from 0 to below 1")
    drafts, accepted = workload.draft_tokens, workload.acceptance_length
    if drafts and accepted is None:
        raise TargetError(f"{path}: draft_tokens = {drafts} without the tokens that a pass gives",
                          "add acceptance_length to [workload]: the mean that your engine reports, at least 1")
    if accepted is not None and not 1 <= accepted <= drafts + 1:
        raise TargetError(f"{path}: workload.acceptance_length = {accepted:g}, but a pass of {drafts} proposed tokens "
                          f"gives 1 to {drafts + 1}", "set draft_tokens and acceptance_length to what the engine does")
    if workload.expert_imbalance < 1:
        raise TargetError(f"{path}: workload.expert_imbalance = {workload.expert_imbalance:g} is below 1",
                          "the fullest rank has at least the mean of all: give a value of at least 1")
    for name in workload.precisions:
        if precision(name) is None:
            raise TargetError(f"{path}: unknown precision {name!r} in [workload]",
                              f"{did_you_mean(name, precision_names())}known: {', '.join(precision_names())}")


def _engine(path: Path, request: TargetRequest) -> Engine:
    """The engine. With tokens that are proposed it speculates, with the release's own layers unless the file says
    otherwise: a profile tells what it does when nothing is asked for.
    """
    engine = resolve_engine(request.engine, path.parent)
    if not request.workload or not request.workload.draft_tokens or request.engine.speculative:
        return engine
    return msgspec.structs.replace(engine, facts=msgspec.structs.replace(engine.facts, speculative="mtp"),
                                   sources={**engine.sources, "speculative": "draft_tokens of the target file"})


def _workload(request: WorkloadRequest | None) -> Workload:
    """The workload, every default filled in."""
    stated = {name: value for name, value in msgspec.structs.asdict(request or WorkloadRequest()).items()
              if value is not None}
    stated["precisions"] = tuple(stated["precisions"])
    return Workload(**stated, source="target file" if request else DEFAULT_WORKLOAD)


def links_identity(path: Path) -> str:
    """Digest of the topologies that a target may take its links from. Raises TargetError, StoreError."""
    request = _parse(path).cluster
    return digest(_topology(path, request) or (None if request.topology else measured_topologies()))


def local_target(layouts: Sequence[Layout], folder: Path) -> Path:
    """Write a target file for this machine with room for the largest of the layouts, and return its path."""
    ranks = max((layout.world_size for layout in layouts), default=1)
    path = folder / f"local-{ranks}.toml"
    write_atomic(path, tomli_w.dumps({"cluster": {"device": LOCAL, "devices_per_node": ranks}}).encode())
    return path


def read_target(path: Path) -> bytes:
    """The content of a target file. Raises TargetError unless it is a readable regular file of at most 1 MiB."""
    try:
        return read_bounded(path, _FILE_LIMIT, str(path))
    except ReleaseError as error:
        raise TargetError(f"cannot read the target: {error.message}", _EXAMPLES) from None


def read_engine(path: Path) -> Engine:
    """The engine of a target file. Raises TargetError."""
    return resolve_engine(_parse(path).engine, path.parent)


def parsed(path: Path, content: bytes | None = None) -> dict[str, Any]:
    """The tables of a target file as they stand there. Raises TargetError."""
    try:
        return tomllib.loads((read_target(path) if content is None else content).decode())
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError too
        raise TargetError(f"{path} is not TOML: {error}", _EXAMPLES) from None


def _parse(path: Path, data: bytes | None = None) -> TargetRequest:
    content = parsed(path, data)
    for key in content.keys() - set(_keys("")):
        raise _unknown(path, key, "")
    if "cluster" not in content:
        raise TargetError(f"{path} has no [cluster]", "add [cluster] with device = ... and devices_per_node = ...")
    try:
        request = msgspec.convert(content, TargetRequest)
    except RecursionError:
        raise TargetError(f"{path} nests its tables too deep", _EXAMPLES) from None
    except msgspec.ValidationError as error:
        raise _explain(path, str(error)) from None
    _check_numbers(path, request)
    return request


def _explain(path: Path, text: str) -> TargetError:
    """What msgspec found wrong, in the words of a TOML file."""
    unknown = _UNKNOWN.match(text)
    if unknown:
        return _unknown(path, unknown["key"], re.sub(r"\[.*?\]", "", unknown["path"] or ""))
    place = _PLACE.match(text)
    what, where = (place["what"], place["path"]) if place else (text, "")
    return TargetError(f"{path}: {where}: {what[0].lower()}{what[1:].replace('`', '')}".replace(": :", ":"),
                       _A_WAIVER if where.startswith("waivers") else _EXAMPLES)


def _unknown(path: Path, key: str, table: str) -> TargetError:
    known = _keys(table)
    elsewhere = next((f"it belongs in [{other}]; " for other in _TABLES if other and key in _keys(other)), "")
    return TargetError(f"{path}: unknown key {key!r}{f' in [{table}]' if table else ''}",
                       f"{did_you_mean(key, known) or elsewhere}known: {', '.join(known)}")


def _keys(table: str) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(_TABLES.get(table, TargetRequest))]


def _numbers(value: Any, place: str) -> Iterator[tuple[str, float]]:
    """(dotted key, number) of all numbers that a request states."""
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            yield from _numbers(getattr(value, field.name), f"{place}.{field.encode_name}".lstrip("."))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, f"{place}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item, place)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place, value


def _check_numbers(path: Path, request: TargetRequest) -> None:
    for key, value in _numbers(request, ""):
        if isinstance(value, int) and abs(value) > _MOST_INTEGER:
            raise TargetError(f"{path}: {key} is not a sensible number: it has more than 64 bits",
                              f"give a value up to {_MOST:.3g}")
        if key.startswith(("engine.", "layout.", "calibration.")):  # any number is possible, or is checked elsewhere
            continue
        rate = key.startswith("cluster.device.flops") or key.endswith("bandwidth")
        most = 1e21 if rate else _MOST
        if not 0 <= value <= most:  # nan is not either
            raise TargetError(f"{path}: {key} = {value} is not a sensible number", f"give a value from 0 to {most:.3g}")
        if value == 0 and not key.endswith(_ZERO_IS_FINE):
            raise TargetError(f"{path}: {key} = 0", "give a value above 0, or leave it out")
    devices = request.cluster.devices_per_node * request.cluster.nodes
    if devices > _MOST_DEVICES:
        raise TargetError(f"{path}: devices_per_node * nodes = {devices}", f"give at most {_MOST_DEVICES} devices")
    if request.cluster.memory_utilization > 1:
        raise TargetError(f"{path}: cluster.memory_utilization = {request.cluster.memory_utilization} is above 1",
                          "it is a share of the device memory: give a value above 0 and up to 1")
    if request.cluster.overlap > 1:
        raise TargetError(f"{path}: cluster.overlap = {request.cluster.overlap} is above 1",
                          "it is a share of the sending: give a value from 0 to 1")


def _cluster(path: Path, request: ClusterRequest, measured: Callable[[int], Device] | None) -> Cluster:
    network, *beyond = _networks(path, request) or (None,)
    chosen = _stated(path, request)
    if chosen is None:
        if measured is None:
            raise TargetError(f'{path}: device = "{LOCAL}" has to be measured, and nothing here can',
                              "pass measured=, as `dayzero adapt` does, or describe the device in an inline table")
        chosen = measured(request.devices_per_node)
    made = Cluster(device=chosen, devices_per_node=request.devices_per_node, nodes=request.nodes,
                   memory_utilization=request.memory_utilization, network=network, beyond=tuple(beyond),
                   overlap=request.overlap)
    found = _topology(path, request) or (None if request.topology or chosen.measured else matching(made))
    return applied(made, found) if found else made


def _topology(path: Path, request: ClusterRequest) -> Topology | None:
    """The topology that a target names; None: none, or `nominal`."""
    if request.topology in (None, NOMINAL):
        return None
    return topology(request.topology, path.parent)


def _networks(path: Path, request: ClusterRequest) -> list[Link]:
    """The levels between nodes, innermost first. Raises TargetError unless each joins more devices than the one
    before, a whole number of its domains."""
    stated = request.network if isinstance(request.network, list) else [request.network] if request.network else []
    domain = request.devices_per_node
    for number, link in enumerate(stated):
        most = request.devices_per_node * request.nodes if link.devices == 0 else link.devices
        if len(stated) > 1 and (most % domain or (most <= domain and number)):
            raise TargetError(f"{path}: cluster.network {link.name!r} joins {most} devices, which are no whole domains "
                              f"of {domain} below it", "list the levels from the innermost, each with its devices")
        domain = most
    return [_link(link) for link in stated]


def _stated(path: Path, request: ClusterRequest) -> Device | None:
    """The device that a cluster states; None: this machine, which has to be measured."""
    if isinstance(request.device, DeviceRequest):
        return _described(path, request.device)
    if request.device != LOCAL:
        return device(request.device)
    if request.nodes != 1:
        raise TargetError(f'{path}: device = "{LOCAL}" is one machine, but nodes = {request.nodes}', "set nodes = 1")
    return None


def _described(path: Path, request: DeviceRequest) -> Device:
    """The device of an inline table."""
    if not request.flops:
        raise TargetError(f"{path}: cluster.device.flops is empty", "state a rate, such as flops = {bf16 = 1e15}")
    if request.efficiency is not None and request.efficiency > 1:
        raise TargetError(f"{path}: cluster.device.efficiency = {request.efficiency} is above 1",
                          "it is a share of the stated rates: give a value above 0 and up to 1")
    if request.fp8 is not None and request.fp8 not in FP8_DIALECTS:
        raise TargetError(f"{path}: unknown dialect of 8-bit floats: {request.fp8!r}",
                          f"{did_you_mean(request.fp8, FP8_DIALECTS)}known: {', '.join(FP8_DIALECTS)}")
    stated = ("memory_bytes", "memory_bandwidth", "flops", "efficiency", "op_overhead", "process_bytes",
              "host_bandwidth", "host_memory_bytes", "disk_bandwidth")
    return Device(
        name=request.name, vendor=request.vendor, arch=request.arch, memory_bytes=request.memory_bytes,
        memory_bandwidth=request.memory_bandwidth, flops=request.flops,
        fp8=FP8_DIALECTS[request.fp8] if request.fp8 else None, efficiency=request.efficiency,
        op_overhead=request.op_overhead, process_bytes=request.process_bytes,
        links=tuple(_link(link) for link in request.links), host_bandwidth=request.host_bandwidth,
        host_memory_bytes=request.host_memory_bytes, disk_bandwidth=request.disk_bandwidth,
        sources={key: request.source for key in stated if getattr(request, key)})


def _link(request: LinkRequest) -> Link:
    return Link(name=request.name, devices=request.devices, bandwidth=request.bandwidth, latency=request.latency,
                source=request.source, shared_by=request.shared_by)


def _waivers(path: Path, waivers: list[Waiver]) -> tuple[Waiver, ...]:
    """The waivers, each with a reason. Preflight knows whether there are such rules."""
    for waiver in waivers:
        if not waiver.reason.strip():
            raise TargetError(f"{path}: the waiver of {waiver.rule} gives no reason",
                              "say in reason why the finding may be accepted until it expires")
    return tuple(waivers)


def _layouts(request: TargetRequest) -> tuple[Layout, ...]:
    """The layouts asked for. One that takes fewer devices is fine if the others can run whole copies of it."""
    asked = request.layout if isinstance(request.layout, list) else [request.layout] if request.layout else []
    layouts = tuple(layout.resolve() for layout in asked)
    world = request.cluster.devices_per_node * request.cluster.nodes
    for layout in layouts:
        if world % layout.world_size:
            layout.check_world(world)
    if len(set(layouts)) != len(layouts):
        raise LayoutError("the same layout is asked for twice", "keep one of them")
    return layouts
