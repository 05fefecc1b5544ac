"""Rules about what a loader makes of a release's tensors: each has one destination, each parameter is filled."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from dayzero.placement.split import is_tower
from dayzero.schema import Finding
from dayzero.stages.preflight.rule import Case, rule

from . import library
from .loader import Arrival, anywhere, arrivals, filter_text, hit, renamed
from .loading import MANY, Declarations, Loading, loading, undeclared
from .mtp import Declaration, predictions, stored_layers


@rule("weights-filter-dead")
def weights_filter_dead(case: Case) -> Iterator[Finding]:
    """A filter of the engine's loader matches no name, because the loader has renamed the tensors before.

    ## What
    The text of a filter matches names as they are in the files, and none as they are after the loader's renames.

    ## Why
    What should be left out is not: a layer that the engine has no module for stops loading with a KeyError, or is read
    into the wrong place.

    ## Example
    The prediction layer of a 61-layer model was to be dropped by `model.layers.61.`, but the loader had taken `model.`
    off already (vllm-project/vllm#16450).

    ## How to fix
    Write the filter for the names after the renames, here `layers.61.`.
    """
    facts = case.target.engine.facts
    if not facts.filters or not facts.renames:
        return
    before = arrivals(case.release.tensors.groups)
    after = renamed(before, facts.renames)
    for text in dict.fromkeys(filter_text(entry)[0] for entry in facts.filters):
        form = anywhere(text)
        would = next((arrival.where(mask) for arrival in before if (mask := hit(text, form, arrival)).any()), None)
        if would and not any(hit(text, form, arrival).any() for arrival in after):
            yield Finding(
                rule="weights-filter-dead", severity="error", subject=text,
                message=f"the filter {text} matches nothing once the loader has renamed the tensors; before, it would "
                        f"match {would.stored(int(would.rows[0]))}",
                hint="write the filter for the names as they are after the renames",
                facts={"would_match": would.stored(int(would.rows[0]))})


@rule("weights-dropped")
def weights_dropped(case: Case) -> Iterator[Finding]:
    """The engine's loader leaves out tensors that the model needs, and says nothing or little.

    ## What
    Tensors whose names the loader does not expect and skips, that one of its filters drops although they belong to the
    decoder, or that a rename leads away from the parameter that they are for; and parameters that are put together from
    several tensors, not all of which are there, or whose scales the engine does not put together (`fuse_suffixes`).
    `filled` is the share of the values that get data.

    ## Why
    The parameters keep what was in memory: answers are noise, or nearly right. Layers for speculation that nobody
    asked for, unused heads and tables that are computed anyway do not count.

    ## Example
    Experts stored as one tensor, and a loader that knew one tensor for each (1CatAI/1Cat-vLLM#21): all experts stayed
    uninitialised. Experts cast into a buffer that was thrown away: the first loss was 15 in place of 3
    (NVIDIA-NeMo/Automodel#2682).

    ## How to fix
    Teach the loader the name, or convert the checkpoint to the names that it knows.
    """
    if not case.has_tensors:
        return
    found, facts = loading(case), case.target.engine.facts
    told: set[str] = set()
    yield from library.unfilled(case)
    if facts.on_unknown in ("skip", "warn"):
        for arrival in (*found.unknown, *undeclared(found)):
            yield from _once(told, _skipped(found, arrival))
    for arrival, text in found.filtered:
        for part in found.parts(arrival):
            family = found.family(part)
            if not found.is_idle(family) and family and family.role != "other" and not is_tower(family):
                yield from _once(told, _dropped(part, f"the filter {text} drops them", f"narrow the filter {text}",
                                                filter=text))
    yield from _once(told, _led_away(found))
    yield from _half_fused(found)
    yield from _once(told, _left_out_of_fusion(case))


def _once(told: set[str], findings: Iterator[Finding]) -> Iterator[Finding]:
    for finding in findings:
        if finding.subject not in told:
            told.add(finding.subject)
            yield finding


def _dropped(arrival: Arrival, why: str, hint: str, severity: str = "error", **facts: object) -> Iterator[Finding]:
    total, lost = arrival.group.count, len(arrival.rows)
    alike = [arrival] if lost == total or lost > MANY else [arrival.where(arrival.rows == row) for row in arrival.rows]
    for part in alike:
        count = len(part.rows)
        filled = 0.0 if count == 1 else round(1 - lost / total, 6)
        whole = "" if count == 1 else f" ({count} of {total})"
        yield Finding(rule="weights-dropped", severity="warning" if severity == "warning" else "error",
                      subject=part.subject, message=f"{part.subject}{whole} reaches no parameter: {why}", hint=hint,
                      facts={"filled": filled if filled else 0, "tensors": count, **facts})


def _skipped(found: Loading, arrival: Arrival) -> Iterator[Finding]:
    quiet = "without a word" if found.case.target.engine.facts.on_unknown == "skip" else "with a warning"
    for part in found.parts(arrival):
        family = found.family(part)
        if not found.is_idle(family):
            tower = family is not None and is_tower(family)
            yield from _dropped(part, f"the loader does not know the name and skips it {quiet}",
                                "teach the loader the name, or convert the tensors to the names that it knows",
                                "warning" if tower else "error")


def _led_away(found: Loading) -> Iterator[Finding]:
    """Tensors that the engine declares a parameter for, and that the loader names otherwise."""
    facts = found.case.target.engine.facts
    if not facts.renames or not facts.declares:
        return
    declared = Declarations(facts.declares)
    reached = {arrival.name(int(row)) for arrival in found.arriving if declared.module_known(arrival.pattern)
               for row in arrival.rows}
    for arrival in found.arriving:
        if arrival.pattern != arrival.group.pattern and declared.module_known(arrival.group.pattern):
            for row in arrival.rows:
                name, now = arrival.stored(int(row)), arrival.name(int(row))
                if name in declared.exact and name not in reached and now not in declared.exact:
                    yield from _dropped(arrival.where(arrival.rows == row), f"the loader's renames make {now} of it",
                                        "narrow the rename to the names that it is meant for")


def _half_fused(found: Loading) -> Iterator[Finding]:
    """Declared parameters that the engine concatenates from several, of which some are in no file."""
    facts = found.case.target.engine.facts
    if not facts.fuses or not facts.declares or found.case.target.partial:
        return
    stored: dict[str, int] = {}
    wanted = {member for group in facts.fuses for member in group}
    for arrival in found.arriving:
        if wanted.intersection(arrival.pattern.split(".")):
            stored |= {arrival.name(int(row)): prod(arrival.group.shape) for row in arrival.rows}
    for entry in facts.declares:
        module, _, form = entry.name.rpartition(".")
        parent = module.rpartition(".")[0]
        for group in facts.fuses if entry.name not in stored else ():
            names = [f"{parent}.{member}.{form}".lstrip(".") for member in group]
            there = sum(stored.get(name, 0) for name in names)
            lost = [name for name in names if name not in stored]
            if lost and 0 < there < prod(entry.shape):
                share = round(there / prod(entry.shape), 6)
                yield Finding(
                    rule="weights-dropped", severity="error", subject=entry.name, facts={"filled": share},
                    message=f"{entry.name} is put together from {', '.join(group)}, and {lost[0]} is in no file",
                    hint="fetch the shards again, or take the parts that are there from one revision")


def _left_out_of_fusion(case: Case) -> Iterator[Finding]:
    """Scales of weights that the engine concatenates, with a suffix that is not among those that it does that for."""
    facts = case.target.engine.facts
    for members in facts.fuses or () if facts.fuse_suffixes else ():
        for stem, scales in case.scales.items():
            parent, _, last = stem.rpartition(".")
            others = [other for other in members if other != last and f"{parent}.{other}" in case.scales]
            for group in scales if last in members and others else ():
                suffix = group.pattern.removeprefix(stem)
                if suffix not in (facts.fuse_suffixes or ()):
                    whole = Arrival(group, np.arange(group.count), group.pattern)
                    yield from _dropped(whole, f"the engine fuses {', '.join(members)}, and {suffix} is not among what "
                                        "it puts together of them", f"fuse {suffix} as well", suffix=suffix)


@rule("weights-unexpected")
def weights_unexpected(case: Case) -> Iterator[Finding]:
    """A tensor in the files has no destination in the engine's model.

    ## What
    The engine declares the parameters of a module, and the files hold another one for it; or its loader stops at names
    that it does not expect, and the files have one; or the files hold decoder layers beyond those that the config
    counts.

    ## Why
    A scale without a home means that the weight beside it is read as what it is not. Layers beyond the count are left
    out, and the model is another one than was published.

    ## Example
    An indexer projection stored in 8 bits with a scale, in an engine that builds it in BF16
    (vllm-project/vllm-ascend#12675); a compressor's scale where the quantisation was switched off in code
    (vllm-project/vllm#43515); a rotation matrix in a prediction layer (vllm-project/vllm-ascend#10317).

    ## How to fix
    Build the module with the quantisation that the files have, or drop the tensor with a filter if it is not needed.
    """
    if not case.has_tensors:
        return
    found, facts = loading(case), case.target.engine.facts
    told: set[str] = set()
    if facts.on_unknown not in ("skip", "warn"):
        for arrival in undeclared(found):
            yield from _once(told, _unexpected(arrival, "the engine's model code declares no such parameter"))
    if facts.on_unknown == "error":
        for arrival in found.unknown:
            yield from _once(told, _unexpected(arrival, "the loader does not expect the name and stops at it"))
    yield from _beyond(case)
    yield from library.unexpected(case)
    yield from library.doubled(case)


def _unexpected(arrival: Arrival, why: str) -> Iterator[Finding]:
    few = len(arrival.rows) <= MANY
    for part in ([arrival.where(arrival.rows == row) for row in arrival.rows] if few else [arrival]):
        yield Finding(rule="weights-unexpected", severity="error", subject=part.subject,
                      message=f"{part.subject} has no destination: {why}",
                      hint="build the module as it is stored, or drop the tensor in the loader if it is not needed",
                      facts={"tensors": len(part.rows)})


def _beyond(case: Case) -> Iterator[Finding]:
    """Decoder layers after the last one that the config counts."""
    first, declared = len(case.model.layers), Declaration(case).layers
    stored = stored_layers(case)
    extra = [layer for layer in stored if layer >= first + declared]
    beyond = {layer: stored[layer] for layer in set(extra) - predictions(case, extra)}
    if beyond and not case.target.partial:
        yield Finding(
            rule="weights-unexpected", severity="error", subject=beyond[min(beyond)],
            message=f"the config counts {first} + {declared} layers, the files hold {len(beyond)} more",
            hint="correct the number of layers in the config, or leave the tensors out", facts={"layer": min(beyond)})
