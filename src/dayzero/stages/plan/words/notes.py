"""What the figures of a plan leave out or assume, in sentences; each only where it applies."""

from __future__ import annotations

from collections.abc import Iterator

from dayzero.data.engines import NEUTRAL
from dayzero.placement.draft import drafted
from dayzero.placement.operators import takes_part
from dayzero.placement.split import is_tower
from dayzero.schema import Device, ModelSpec, OpGraph, Target
from dayzero.stages.plan.times.roofline import counted
from dayzero.stages.plan.times.speeds import Speeds
from dayzero.stages.plan.ways.apart import between

from .link_notes import link_notes

MICROSCALED = ("mxfp4", "mxfp8", "nvfp4")
"""Schemes that engines and families of weights call by one name."""
UNKNOWNS = 3
"""Of what was not understood in a release, how much is named."""


def notes(model: ModelSpec, target: Target, speeds: Speeds, graph: OpGraph | None) -> tuple[str, ...]:
    """What all figures leave out."""
    device = target.cluster.device
    traced = counted(graph, "decode") is not None
    return (*_time_notes(speeds, target), *_table_notes(speeds, target), *link_notes(target.cluster),
            *_device_notes(speeds, device, traced), *_model_notes(model, target), *_workload_notes(model, target))


def _time_notes(speeds: Speeds, target: Target) -> Iterator[str]:
    apart = "" if target.cluster.overlap else "; computing and sending are taken not to overlap"
    uneven = target.workload.expert_imbalance
    yield (f"the fullest rank of experts has {uneven:g} times the mean, as the target states" if uneven > 1 else
           "routing is taken as uniform") + apart
    if target.workload.arrival_rate:
        yield ("times are means over requests that arrive at random (Poisson) and are all alike; prompts wait for each "
               "other, and for room in the cache")
    elif speeds.shares:
        yield ("times are means at the workload's concurrency: prompts wait for each other, and for room in the cache; "
               "tokens a second are those of requests that follow one another")
    else:
        yield "queueing is left out: the time to the first token is that of a prompt alone on its replica"


def _table_notes(speeds: Speeds, target: Target) -> Iterator[str]:
    """What measured tables that the target asks for do, and do not do."""
    if target.operators.times != "measured":
        return
    tables = speeds.shares.tables if speeds.shares else None
    if tables is None:
        device = target.cluster.device
        yield (f"measured tables take no part: the rates of {device.name} are measured or stated themselves"
               if not speeds.shares else f"measured tables take no part: they do not have {device.name}")
    elif tables.unmapped:
        yield f"measured tables of operators that are not read: {', '.join(map(_table_name, tables.unmapped))}"


def _table_name(file: str) -> str:
    return file.removesuffix(".parquet").removesuffix("_perf")


def _device_notes(speeds: Speeds, device: Device, traced: bool) -> Iterator[str]:
    if speeds.shares:
        yield (f"only the datasheet of {device.name} is known: times take the shares of its rates, and the time of "
               "calls, that published measurements show of devices and engines like these (docs/numbers.md)")
    elif device.op_overhead is None:
        yield (f"the overhead of an operator on {device.name} is not known: the value leaves it out, "
               + ("the high end of a time has some for each traced operator" if traced else
                  "and so does the high end of a time, since the operators were not traced"))
    elif not traced:
        yield "the operators were not traced: their overhead is left out"
    pipelined = "one stage at a time" if device.measured else "micro-batches in flight where they are enough"
    yield f"pipelines: the value takes {pipelined}; the interval spans both"


def _model_notes(model: ModelSpec, target: Target) -> Iterator[str]:
    if model.unknowns:
        more = len(model.unknowns) - UNKNOWNS
        yield (f"not understood, so in no figure: {', '.join(model.unknowns[:UNKNOWNS])}"
               + (f" and {more} more (dayzero read)" if more > 0 else ""))
    device, unrated = target.cluster.device, dict[str, list[str]]()
    for family in model.families:
        if takes_part(family, model) and device.computes_in(family.scheme) is None:
            unrated.setdefault(family.scheme, []).append(family.role)
    for scheme, roles in unrated.items():
        yield (f"{device.name} states no rate for {scheme}: the time of {', '.join(sorted(set(roles)))} is that of "
               "memory alone")
    chosen = any(family.role.split(".")[0] == "indexer" for family in model.families) or any(
        attention.kind == "sparse" for attention in model.attentions.values())
    if chosen and not any(attention.index_top_k for attention in model.attentions.values()):
        yield "how many tokens sparse attention looks at is not stated: it is costed as full attention"
    if any(is_tower(family) for family in model.families):
        yield "towers for other inputs are not costed: the prompt is text"
    if model.mtp_layers and not target.workload.draft_tokens:
        yield "multi-token prediction is not used: the workload states no draft_tokens"


def _workload_notes(model: ModelSpec, target: Target) -> Iterator[str]:
    if target.engine.name == NEUTRAL:
        yield ("no engine is named: the first layouts may be such as yours does not have, and it may need other "
               "memory; with [engine] name = ... in the target only its layouts are looked at")
    workload, device = target.workload, target.cluster.device
    if model.max_positions and workload.length > model.max_positions:
        yield (f"sequences of {workload.length:,} tokens are longer than the {model.max_positions:,} that the "
               "model's config states")
    able = target.engine.facts.schemes
    unknown = sorted({family.scheme for family in model.families if takes_part(family, model)
                      and family.scheme in MICROSCALED} - set(able if able is not None else MICROSCALED))
    if unknown:
        yield (f"the engine is not known to run weights in {', '.join(unknown)}; its schemes are "
               f"{', '.join(able or ())} (dayzero preflight)")
    if workload.draft_tokens:
        draft = ("the release's own multi-token-prediction layers" if drafted(model, target) else
                 "not known, so its time and memory are left out")
        yield (f"a pass checks {workload.draft_tokens} proposed tokens and gives {workload.acceptance_length:g} on "
               f"average, as the workload states; what proposes them is {draft}")
    if workload.shared_tokens:
        yield (f"{workload.shared_tokens:,} of the {workload.input_tokens:,} tokens of a prompt are in the cache, "
               "as the workload states; all requests have the same ones")
    if workload.precisions:
        yield "precisions: what another checkpoint answers is not judged, only how it fits and how fast it is"
    if device.host_bandwidth and workload.arrival_rate:
        yield "for random arrivals nothing is kept in the host's memory"
    elif device.host_bandwidth and device.host_memory_bytes is None:
        yield "the host's memory is not stated: it is taken to hold whatever a layout keeps there"
    if target.cluster.world_size > 1 and between(target) is None:
        yield "workers apart are left out: no link that joins all devices is stated"
