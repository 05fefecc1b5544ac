"""Rules about what an engine's loader makes of a release's tensors: each has one destination, each parameter is filled.

`declares` may be a partial list: it is checked for the names given and for the modules that they belong to.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from dayzero.placement.split import UNUSED, is_mtp, is_tower
from dayzero.schema import Finding, WeightFamily
from dayzero.schema.target import Declared

from .loader import Arrival, any_hit, anywhere, arrivals, at_end, filter_text, hit, renamed
from .mtp import Declaration, is_prediction, stored_layers
from .rule import Case, rule

MANY = 8
"""More tensors than this are one finding, about the pattern."""
_NUMBERS = re.compile(r"(?<![^.])(?:\d+|\{\w+\})(?![^.])")
_FORMS = ("weight", "bias")
_BYTES = {"U8", "I8", "F4", "F8_E8M0", "F6_E2M3", "F6_E3M2"}
"""dtypes under which the same packed bytes go."""
_FLOATS = {"F64": (11, 52), "F32": (8, 23), "BF16": (8, 7), "F16": (5, 10)}
"""Bits of exponent and of mantissa (IEEE 754; bfloat16)."""
_SPELLINGS = {"BFLOAT16": "BF16", "FLOAT16": "F16", "HALF": "F16", "FLOAT32": "F32", "FLOAT": "F32", "FP32": "F32",
              "FP16": "F16", "FLOAT64": "F64", "INT8": "I8", "UINT8": "U8", "INT32": "I32", "INT64": "I64",
              "FLOAT8_E4M3FN": "F8_E4M3", "FP8": "F8_E4M3", "F8_E4M3FN": "F8_E4M3", "FLOAT8_E5M2": "F8_E5M2",
              "FLOAT8_E8M0FNU": "F8_E8M0", "FLOAT8_E4M3FNUZ": "F8_E4M3FNUZ"}


@dataclass
class Loading:
    """What becomes of all tensors in the engine's loader."""

    case: Case
    arriving: list[Arrival]
    """Renamed, not dropped by a filter."""
    filtered: list[tuple[Arrival, str]]
    """Dropped, and the filter that did it."""
    unknown: list[Arrival] = field(default_factory=list)
    """Of those that arrive, the ones that the engine's list of expected names does not have."""

    @cached_property
    def families(self) -> dict[str, list[WeightFamily]]:
        """By pattern."""
        found: dict[str, list[WeightFamily]] = defaultdict(list)
        for family in self.case.model.families:
            found[family.pattern].append(family)
        return found

    def family(self, arrival: Arrival) -> WeightFamily | None:
        """The family of the first of its tensors."""
        layer = int(arrival.group.layer.values[arrival.rows[0]])
        alike = [family for family in self.families[arrival.group.pattern] if family.shape == arrival.group.shape]
        return next((family for family in alike if layer in family.layers), alike[0] if alike else None)

    def is_idle(self, family: WeightFamily | None) -> bool:
        """Whether the model is whole without it: an unused head, a table that is computed anyway, draft layers that
        are not asked for."""
        if family is None or family.role.split(".")[0] in (UNUSED, "buffer"):
            return True
        return is_mtp(family, self.case.model) and self.case.target.engine.facts.speculative != "mtp"

    def parts(self, arrival: Arrival) -> Iterator[Arrival]:
        """Its decoder layers and those after them."""
        after = arrival.group.layer.values[arrival.rows] >= len(self.case.model.layers)
        yield from (arrival.where(mask) for mask in (~after, after) if mask.any())


def loading(case: Case) -> Loading:
    """Renames, filters and expected names applied to all tensors. Raises TargetError for what is not understood."""
    facts = case.target.engine.facts
    arriving = renamed(arrivals(case.release.tensors.groups), facts.renames or ())
    filtered: list[tuple[Arrival, str]] = []
    for entry in facts.filters or ():
        text, drops = filter_text(entry)
        kept = []
        for arrival in arriving:
            mask = hit(text, anywhere(text), arrival)
            gone = mask if drops else ~mask
            if gone.any():
                filtered.append((arrival.where(gone), text))
            if not gone.all():
                kept.append(arrival.where(~gone))
        arriving = kept
    done = Loading(case, arriving, filtered)
    if facts.expects and facts.on_unknown:
        done.unknown = [arrival.where(mask) for arrival in arriving
                        if _in_scope(facts.expects, arrival)
                        and (mask := ~any_hit(facts.expects, at_end, arrival)).any()]
    return done


def _in_scope(expects: list[str], arrival: Arrival) -> bool:
    """Whether the list of expected names says something about a tensor: it has a name within one of its modules."""
    within = {segment for text in expects for segment in _parents(text)}
    return not all(_parents(text) for text in expects) or bool(within.intersection(arrival.pattern.split(".")))


def _parents(text: str) -> list[str]:
    """Names of the modules that the named one is in; without numbers and stars."""
    segments = text.split(".")
    while len(segments) > 1 and segments[-1] in _FORMS:
        segments.pop()
    return [segment for segment in segments[:-1] if segment and not re.search(r"[{*\d]", segment)]


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
    several tensors, not all of which are there. `filled` is the share of the values that get data.

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
    if facts.on_unknown in ("skip", "warn"):
        for arrival in (*found.unknown, *_undeclared(found)):
            yield from _once(told, _skipped(found, arrival))
    for arrival, text in found.filtered:
        for part in found.parts(arrival):
            family = found.family(part)
            if not found.is_idle(family) and family and family.role != "other" and not is_tower(family):
                yield from _once(told, _dropped(part, f"the filter {text} drops them", f"narrow the filter {text}",
                                                filter=text))
    yield from _once(told, _led_away(found))
    yield from _half_fused(found)


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
    declared = _Declarations(facts.declares)
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


class _Declarations:
    """The parameters that the engine declares, by name and by module."""

    def __init__(self, entries: list[Declared]) -> None:
        self.exact = {entry.name: entry for entry in entries if "{" not in entry.name and "*" not in entry.name}
        self.alike = [entry for entry in entries if entry.name not in self.exact]
        self.modules = {_module(entry.name) for entry in entries}
        self.stems = {entry.name.removesuffix(".weight") for entry in entries}
        self._keys = {_key(module) for module in self.modules}
        self._inner = {_key(stem) for stem in self.stems}

    def module_known(self, pattern: str) -> bool:
        """Whether tensors of that pattern may be in a module of which something is declared."""
        return bool(self._keys.intersection(_key(part) for part in _ancestors(pattern)))

    def entry(self, name: str, arrival: Arrival) -> Declared | None:
        """What is declared under a name."""
        if name in self.exact:
            return self.exact[name]
        return next((entry for entry in self.alike if hit(entry.name, _whole, arrival).any()), None)


def _whole(made: str) -> str:
    return f"^{made}$"


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _key(name: str) -> str:
    """A name in which all numbers are alike."""
    return _NUMBERS.sub("#", name)


def _ancestors(name: str) -> Iterator[str]:
    """The modules that a tensor is in, innermost first."""
    while name := _module(name):
        yield name


def _undeclared(found: Loading) -> Iterator[Arrival]:
    """Tensors in a module of which the engine declares parameters, but not one for them."""
    entries = found.case.target.engine.facts.declares
    if not entries:
        return
    declared = _Declarations(entries)
    outer = {_module(module) for module in {_module(name) for name in declared.exact}}
    outer |= {module for arrival in found.arriving for module in list(_ancestors(arrival.pattern))[1:]}
    containers = {_key(module) for module in outer}
    for arrival in found.arriving:
        if not declared.module_known(arrival.pattern):
            continue
        rows = [row for row in arrival.rows if _is_foreign(arrival.name(int(row)), arrival, declared, containers)]
        family = found.family(arrival) if rows else None
        if rows and not (family and family.role == "buffer"):
            yield Arrival(arrival.group, np.array(rows), arrival.pattern)


def _is_foreign(name: str, arrival: Arrival, declared: _Declarations, containers: set[str]) -> bool:
    """Whether a tensor belongs to a declared module and has no parameter there. Of a module that holds other modules,
    a partial list says nothing but about what a declared parameter's name goes on with, as that of a scale does."""
    if declared.entry(name, arrival) is not None:
        return False
    if any(name.startswith((f"{stem}_", f"{stem}.")) for stem in declared.stems):
        return True
    module = _module(name)
    return _key(module) not in containers and (
        module in declared.modules or any(hit(entry.name, lambda made: f"^{_module_form(made)}", arrival).any()
                                          for entry in declared.alike))


def _module_form(made: str) -> str:
    return made.rpartition(r"\.")[0] + r"\.[^.]*$"


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
        for arrival in _undeclared(found):
            yield from _once(told, _unexpected(arrival, "the engine's model code declares no such parameter"))
    if facts.on_unknown == "error":
        for arrival in found.unknown:
            yield from _once(told, _unexpected(arrival, "the loader does not expect the name and stops at it"))
    yield from _beyond(case)


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
    beyond = {layer: name for layer, name in stored_layers(case).items()
              if layer >= first + declared and not is_prediction(case, layer)}
    if beyond and not case.target.partial:
        yield Finding(
            rule="weights-unexpected", severity="error", subject=beyond[min(beyond)],
            message=f"the config counts {first} + {declared} layers, the files hold {len(beyond)} more",
            hint="correct the number of layers in the config, or leave the tensors out", facts={"layer": min(beyond)})


@rule("weights-dtype")
def weights_dtype(case: Case) -> Iterator[Finding]:
    """A tensor is stored in another dtype than the engine's parameter for it has.

    ## What
    The header's dtype against the one that the engine declares. Integers or 8-bit floats against wider floats are an
    error: the numbers mean nothing without their scale. A float that loses digits or range is a warning; one that
    becomes wider is none, nor is another name for the same packed bytes.

    ## Why
    Loaders copy and cast. An integer 37 becomes the weight 37.0.

    ## Example
    An indexer projection stored as I8 with a scale, declared in BF16 (vllm-project/vllm-ascend#12675).

    ## How to fix
    Build the module with the quantisation that the files have.
    """
    entries = case.target.engine.facts.declares
    if not entries or not case.has_tensors:
        return
    declared = _Declarations(entries)
    for arrival in loading(case).arriving:
        if declared.module_known(arrival.pattern):
            odd: Mapping[str, list[int]] = defaultdict(list)
            for row in arrival.rows:
                entry = declared.entry(arrival.name(int(row)), arrival)
                if entry is not None and _differs(arrival.group.dtype, entry.dtype):
                    odd[entry.dtype].append(int(row))
            for dtype, rows in odd.items():
                yield from _other_dtype(Arrival(arrival.group, np.array(rows), arrival.pattern), dtype)


def _standard(dtype: str) -> str:
    name = dtype.removeprefix("torch.").upper()
    return _SPELLINGS.get(name, name)


def _differs(file: str, declared: str) -> bool:
    stored, wanted = _standard(file), _standard(declared)
    if stored == wanted or {stored, wanted} <= _BYTES:
        return False
    if stored in _FLOATS and wanted in _FLOATS:
        return any(have > room for have, room in zip(_FLOATS[stored], _FLOATS[wanted], strict=True))
    return True


def _other_dtype(arrival: Arrival, declared: str) -> Iterator[Finding]:
    file = arrival.group.dtype
    rounds = _standard(file) in _FLOATS and _standard(declared) in _FLOATS
    for part in ([arrival.where(arrival.rows == row) for row in arrival.rows] if len(arrival.rows) <= MANY
                 else [arrival]):
        yield Finding(
            rule="weights-dtype", severity="warning" if rounds else "error", subject=part.subject,
            message=f"{part.subject} is stored as {file}, and the engine's parameter is {declared}"
                    + (": values are rounded" if rounds else ": its values mean something else there"),
            hint="build the module in the dtype that is stored", facts={"file": file, "declared": declared})
