"""What the figures of a plan leave out or assume, in sentences; each only where it applies."""

from __future__ import annotations

from collections.abc import Iterator

from dayzero.placement.operators import takes_part
from dayzero.placement.split import is_tower
from dayzero.schema import Device, ModelSpec, OpGraph, Target

from .link_notes import link_notes
from .roofline import counted
from .speeds import Speeds


def notes(model: ModelSpec, target: Target, speeds: Speeds, graph: OpGraph | None) -> tuple[str, ...]:
    """What all figures leave out."""
    device = target.cluster.device
    traced = counted(graph, "decode") is not None
    return (*_time_notes(speeds, target), *link_notes(target.cluster), *_device_notes(speeds, device, traced),
            *_model_notes(model, device))


def _time_notes(speeds: Speeds, target: Target) -> Iterator[str]:
    apart = "" if target.cluster.overlap else "; computing and sending are taken not to overlap"
    uneven = target.workload.expert_imbalance
    yield (f"the fullest rank of experts has {uneven:g} times the mean, as the target states" if uneven > 1 else
           "routing is taken as uniform") + apart
    if speeds.shares:
        yield ("times are means at the workload's concurrency: prompts wait for each other, and for room in the cache; "
               "tokens a second are those of requests that follow one another")
    else:
        yield "queueing is left out: the time to the first token is that of a prompt alone on its replica"


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


def _model_notes(model: ModelSpec, device: Device) -> Iterator[str]:
    unrated: dict[str, list[str]] = {}
    for family in model.families:
        if takes_part(family, model) and device.computes_in(family.scheme) is None:
            unrated.setdefault(family.scheme, []).append(family.role)
    for scheme, roles in unrated.items():
        yield (f"{device.name} states no rate for {scheme}: the time of {', '.join(sorted(set(roles)))} is that of "
               "memory alone")
    if any(attention.kind == "sparse" for attention in model.attentions.values()) or any(
            family.role.split(".")[0] == "indexer" for family in model.families):
        yield "sparse attention is costed as full attention: the tokens that an indexer leaves out are counted"
    if any(is_tower(family) for family in model.families):
        yield "towers for other inputs are not costed: the prompt is text"
    if model.mtp_layers:
        yield "multi-token prediction is not costed: one token a step"
