"""Rules about quantisation: what the config says against what the files hold, and what engines make of both."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

import numpy as np

from dayzero.data.quantisation import statements
from dayzero.placement.split import is_mtp
from dayzero.schema import Finding
from dayzero.schema.finding import Severity
from dayzero.stages.preflight.code.support import is_listed
from dayzero.stages.preflight.rule import Case, rule

from .excludes import unmatched
from .modules import Module, agrees, scheme_of
from .stated import Format

MANY = 8
"""More alike findings than this are one, about the pattern."""
_NEVER = ("embedding", "head", "router", "norm", "buffer", "projection", "other")
"""First words of roles that engines keep plain whatever a config says, or of which nothing is known."""
_NEVER_WHOLE = ("shared_experts.router", "linear.conv")
_DESCRIPTIONS = ("quant*.json",)
"""Files that state quantisation in ways of their own."""


@rule("quant-config-vs-file")
def quant_config_vs_file(case: Case) -> Iterator[Finding]:
    """A weight is stored in another format than the config's quantisation says.

    ## What
    The format that quantization_config (or hf_quant_config.json) gives a linear layer by its method, its groups and
    their targets, its exceptions and its list of excluded modules, against the dtype and the scales in the headers.
    Embeddings, heads, routers and norms are left plain by every engine and do not count, nor do weights that are
    smaller than one block.

    ## Why
    An engine that builds its modules from the config allocates packed values and scales for a weight that is plain, or
    the other way round: loading stops, or a scale is missing and the layer computes noise. Where the files decide
    (`quant_from = "file"`) it is a warning; and so it is for a module that is plain in all of its layers while others
    are quantised as stated, where there are exceptions, every one applies, and the engine's profile lists the
    architecture: its model code was written for these files.

    ## Example
    A config that quantises every Linear to MXFP4 and excludes neither of the two latent projections, which the files
    hold in BF16 (sgl-project/sglang#35406).

    ## How to fix
    Add the module to the list of excluded modules, or store it as the config says.
    """
    said = case.stated
    described = case.model.quantization is None and any(
        fnmatchcase(file.name.rpartition("/")[2], pattern) for file in case.release.files for pattern in _DESCRIPTIONS)
    if not case.has_tensors or not said.understood or described:
        return
    nested = "." in case.model.sources.get("quantization", "").partition(": ")[2]
    quantised = {module.stem for module in case.modules if not module.is_plain}
    stems = Counter(module.stem for module in case.modules)
    careful = bool(said.excludes) and not any(unmatched(case))
    adapted = careful and bool(quantised) and is_listed(case)
    for module in case.modules:
        if module.is_tower and (nested or module.is_plain):
            continue
        places: dict[Format | None, list[int]] = defaultdict(list)
        for layer in module.layers:
            form = said.of(module.name(layer), module.role)
            if _differs(module, form, quantised):
                places[form].append(layer)
        for form, layers in places.items():
            whole = module.is_plain and len(layers) == len(module.layers) and module.stem not in quantised
            everywhere = len(layers) == len(module.layers) and stems[module.stem] == 1
            yield from _differences(case, module, form, layers, meant=whole and adapted, everywhere=everywhere)


def _differs(module: Module, form: Format | None, quantised: set[str]) -> bool:
    """Whether a weight is stored otherwise than the config says. `quantised`: modules that are so in some layer."""
    if not module.is_plain:
        return form is None or not agrees(form.scheme, module.family, form)
    if form is None:
        return False
    family = module.family
    never = module.role in _NEVER_WHOLE or module.role.split(".")[0] in _NEVER
    never = never or not set(statements().plain).isdisjoint(module.stem.split("."))
    rows, columns = form.block or (1, 1)
    small = family.shape[-2] < rows or family.shape[-1] < columns
    single = len(family.shape) == 2 or family.experts > 0
    linear = family.pattern.endswith(".weight") or family.experts > 0
    return single and linear and not small and family.dtype != "F32" and (not never or module.stem in quantised)


def _differences(case: Case, module: Module, form: Format | None, layers: list[int], *, meant: bool,
                 everywhere: bool) -> Iterator[Finding]:
    """One finding for each tensor of these layers, or one for all if they are many, or all of that name
    (`everywhere`). `meant`: the engine knows."""
    group = module.group
    facts = {"config": form.scheme if form else case.model.dtype or "bf16",
             "file": scheme_of(module.family, form) or module.family.scheme}
    rows = np.flatnonzero(np.isin(group.layer.values, layers))
    severity: Severity = "warning" if meant or case.target.engine.facts.quant_from == "file" else "error"
    if is_mtp(module.family, case.model) and case.target.engine.facts.speculative != "mtp":
        severity = "info"
    each = len(rows) == 1 or (len(rows) <= MANY and not everywhere)
    for subject in [group.name(int(row)) for row in rows] if each else [group.pattern]:
        count = {} if each else {"count": len(rows), "first": group.name(int(rows[0]))}
        yield Finding(
            rule="quant-config-vs-file", severity=severity, subject=subject,
            message=f"{subject} is stored in {facts['file']}, the config says {facts['config']}"
                    + (f" ({len(rows)} tensors)" if count else ""),
            hint="exclude the module in the quantisation config" if module.is_plain
                 else "correct the quantisation config: the files hold scales for it",
            facts={**facts, **count})


@rule("quant-exclude-unmatched")
def quant_exclude_unmatched(case: Case) -> Iterator[Finding]:
    """An entry of the list of modules to leave plain stands for no module.

    ## What
    The entries (names, wildcards, regular expressions) of `ignore`, `modules_to_not_convert`, `exclude_modules` and
    their kin against the module names that the engine has at run time (`modules`), or without those against the names
    in the files. So does an entry whose modules are, at run time, a part of a fused one that no entry stands for. An
    entry for layers, towers or a head of which the engine's list says nothing is not judged, and a
    general pattern that finds nothing in the files is an info.

    ## Why
    A list that does not match leaves nothing plain: the module is built quantised, and its plain weights do not fit, or
    are read as packed ones. Names change between checkpoint and engine: fused projections, a prediction layer that
    becomes a draft model, another prefix.

    ## Example
    A list that excludes layer 78, while the engine calls the same layer by the name of its draft model
    (sgl-project/sglang#30265); fused shared experts that a list of unfused names misses (vllm-project/vllm#50500).

    ## How to fix
    Add the names that the engine uses.
    """
    for entry, why, severity in unmatched(case):
        yield Finding(
            rule="quant-exclude-unmatched", severity=severity, subject=entry,
            message=f"the excluded module {entry} {why}", hint="add the name that the module has at run time",
            facts={"entry": entry})


@rule("quant-fusion-mixed")
def quant_fusion_mixed(case: Case) -> Iterator[Finding]:
    """Weights that the engine concatenates are stored in different formats.

    ## What
    For every group of parameters that the engine puts in one tensor (`fuses`): formats and kinds of scale of its
    members at the same place. Without tensors the list of excluded modules tells: one member in it and another not.

    ## Why
    One tensor has one dtype and one kind of scale. Engines that do not check cast the plain part to 8 bits without a
    scale, or apply another part's scale to it: the output is garbled.

    ## Example
    A fused input projection of a linear attention, of which one part was FP8 and the other BF16
    (lightseekorg/tokenspeed#766).

    ## How to fix
    Store all members in one format, or keep the engine from fusing them.
    """
    fuses = [[name.removesuffix(".weight") for name in names] for names in case.target.engine.facts.fuses or ()]
    for names in fuses:
        if not case.has_tensors:
            yield from _excluded_apart(case, names)
            continue
        parents: dict[str, dict[str, list[Module]]] = defaultdict(lambda: defaultdict(list))
        for module in case.modules:
            for name in names:
                if module.stem == name or module.stem.endswith(f".{name}"):
                    parents[module.stem.removesuffix(name)][name].append(module)
        for parent, members in parents.items():
            if len(members) > 1:
                yield from _mixed(case, parent, members)


def _mixed(case: Case, parent: str, members: dict[str, list[Module]]) -> Iterator[Finding]:
    """A finding if members differ somewhere."""
    forms = {module.group.pattern + str(module.group.shape) + module.group.dtype: _stored(case, module)
             for modules in members.values() for module in modules}
    if len(set(forms.values())) == 1:
        return
    places: dict[tuple[int, int], dict[str, str]] = defaultdict(dict)
    for name, modules in members.items():
        for module in modules:
            form = forms[module.group.pattern + str(module.group.shape) + module.group.dtype]
            layers, experts = module.group.layer.values.tolist(), module.group.expert.values.tolist()
            for place in zip(layers, experts, strict=True):
                places[place][name] = form
    mixed = {place: found for place, found in places.items() if len(set(found.values())) > 1}
    if not mixed:
        return
    first = min(mixed)
    formats = mixed[first]
    pattern = parent if len(mixed) > MANY else parent.replace("{L}", str(first[0])).replace("{E}", str(first[1]))
    patterns = [modules[0].group.pattern.replace(parent, pattern, 1) for modules in members.values()]
    yield Finding(
        rule="quant-fusion-mixed", severity="error", subject=" + ".join(patterns),
        message=f"the engine fuses {', '.join(formats)} of {pattern.rstrip('.')}, but they are stored as "
                f"{', '.join(formats.values())}" + (f" ({len(mixed)} places)" if len(mixed) > 1 else ""),
        hint="store them in one format, or keep the engine from fusing them",
        facts={"formats": formats, "count": len(mixed)})


def _stored(case: Case, module: Module) -> str:
    """Format and kind of scale."""
    if module.is_plain:
        return case.model.dtype if case.model.dtype in ("bf16", "f16", "f32") else "bf16"
    scheme = scheme_of(module.family, None) or module.family.scheme
    lacking = [suffix for suffix in case.target.engine.facts.fuse_suffixes or () if suffix.startswith(".weight_")
               and module.stem + suffix not in case.patterns.groups]
    if lacking:
        return f"{scheme} without {', '.join(lacking)}"
    scale = next((group for group in case.scales.get(module.stem, ())), None)
    if scale is None:
        return scheme
    rows = module.family.shape[-2]
    if len(scale.shape) < 2:
        return f"{scheme} by row" if scale.shape and scale.shape[0] > 1 else f"{scheme} with one scale"
    return f"{scheme} by row" if scale.shape[-1] == 1 and scale.shape[-2] == rows > 1 else scheme


def _excluded_apart(case: Case, names: Iterable[str]) -> Iterator[Finding]:
    """Without tensors: members of which the config excludes some and not others."""
    said, found, names = case.stated, [], list(names)
    for entry in said.excludes if said.understood and said.formats() else ():
        parent, _, last = entry.rpartition(".")
        if parent and last in names and not entry.startswith("re:"):
            apart = [name for name in names if not said.excluded.match(f"{parent}.{name}")]
            if apart:
                found.append((parent, last, apart))
    for parent, last, apart in found[:1]:
        members = [last, *apart]
        yield Finding(
            rule="quant-fusion-mixed", severity="error", subject=" + ".join(f"{parent}.{name}" for name in members),
            message=f"the engine fuses {', '.join(members)} of {parent}, but the config leaves only {last} plain"
                    + (f" ({len(found)} places)" if len(found) > 1 else ""),
            hint="exclude all of them or none", facts={"count": len(found)})
