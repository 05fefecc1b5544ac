"""Rules about what the engine and the device can compute with: quantisation schemes and dialects of 8-bit floats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from dayzero.placement.split import is_mtp
from dayzero.schema import Finding
from dayzero.schema.target import QuantBackend
from dayzero.stages.preflight.rule import Case, rule

from .modules import PLAIN, scheme_of
from .unknown import unknown_method

_FLOAT8 = ("F8_E4M3", "F8_E5M2")
_OTHER_DIALECT = "FNUZ"
BIAS_STEP = 2
"""Factor between the values of the same byte in the two dialects: their exponents differ by one."""


def schemes_of(case: Case) -> list[str]:
    """Quantisation schemes of the weights, as the files show them, or as the config states them where there are no (or
    not all) tensors; for a release that is not quantised that of its weights."""
    found: dict[str, None] = {}
    for module in case.modules:
        if module.is_plain or (is_mtp(module.family, case.model) and case.target.engine.facts.speculative != "mtp"):
            continue
        form = case.stated.of(module.name(module.layers[0]), module.role) or case.stated.rest
        scheme = scheme_of(module.family, form)
        if scheme:
            found[scheme] = None
    if not case.has_tensors or case.target.partial:
        found.update(dict.fromkeys(form.scheme for form in case.stated.formats()))
    return list(found) or [case.model.dtype]


@rule("quant-unsupported")
def quant_unsupported(case: Case) -> Iterator[Finding]:
    """The engine, or its default backend on this device, cannot run the scheme of the weights.

    ## What
    The schemes that the files hold (or the config states) against the engine's `schemes`, and against its `backends`:
    of those that name the scheme one has to be the default and be built for the device's architecture. The names of
    others that are built for it are in the facts: they have to be chosen. A method that is not known here, or a
    quantisation table that names none, is a warning: nothing could be compared.

    ## Why
    The engine stops at start-up, after the download; or falls back to an emulation that nobody asked for.

    ## Example
    Four-bit weights with 16-bit activations on an engine that has w8a8 and w4a8 (vllm-project/vllm-ascend#7076); MXFP4
    experts whose only default backend is built for another chip (vllm-project/recipes#838).

    ## How to fix
    Choose a backend that the facts name, or take a release in a scheme that the engine can run.
    """
    yield from unknown_method(case)
    facts, arch = case.target.engine.facts, case.target.cluster.device.arch
    able = {name.lower() for name in facts.schemes} if facts.schemes is not None else None
    for scheme in schemes_of(case):
        if scheme in PLAIN and scheme not in ("bf16", "f16"):
            continue  # f32 is cast
        named = [backend for backend in facts.backends or () if backend.op.lower() == scheme]
        built = [backend for backend in named if arch and _runs_on(backend, arch)]
        others = [backend.name for backend in built if not backend.default]
        if able is not None and scheme not in able:
            yield _unsupported(scheme, f"the engine runs {', '.join(sorted(able)) or 'nothing'}", others)
        elif named and arch and not any(backend.default for backend in built):
            defaults = [backend.name for backend in named if backend.default]
            why = f"{', '.join(defaults)} is not built for {arch}" if defaults else f"there is no default for {arch}"
            yield _unsupported(scheme, why, others)


def _unsupported(scheme: str, why: str, alternatives: list[str]) -> Finding:
    hint = f"choose {' or '.join(alternatives)}" if alternatives else "take another engine, or another release"
    return Finding(rule="quant-unsupported", severity="error", subject=scheme,
                   message=f"weights in {scheme} cannot be run: {why}", hint=hint, facts={"alternatives": alternatives})


def _runs_on(backend: QuantBackend, arch: str) -> bool:
    return any(fnmatchcase(_standard(arch), _standard(pattern)) for pattern in backend.archs)


def _standard(arch: str) -> str:
    """Lower case, without underscores and without the letter that marks a variant of a numbered architecture."""
    plain = arch.lower().replace("_", "").replace("compute", "sm")
    return re.sub(r"^(sm[0-9]+)[af]$", r"\1", plain)


@rule("fp8-dialect")
def fp8_dialect(case: Case) -> Iterator[Finding]:
    """The weights are 8-bit floats of another dialect than the device's.

    ## What
    The dtype of 8-bit weights (OCP, or `FNUZ`) against the dialect that the device computes in. Where the engine can
    re-encode them (`fp8_conversion`) it is a warning.

    ## Why
    The same byte is worth half in the other dialect, and the byte of minus zero is NaN there: nothing stops, and the
    output is noise.

    ## Example
    An OCP release on a device that computes in e4m3fnuz (vllm-project/vllm#45681, #41961).

    ## How to fix
    Re-encode the weights and double their scales, or take an engine that does so while loading.
    """
    dialect = case.target.cluster.device.fp8
    if dialect is None:
        return
    device_other = dialect.upper().endswith(_OTHER_DIALECT)
    stored = sorted({family.dtype for family in case.model.families
                     if family.parameters and family.dtype.startswith(_FLOAT8)
                     and family.dtype.endswith(_OTHER_DIALECT) != device_other})
    if stored:
        able = bool(case.target.engine.facts.fp8_conversion)
        yield Finding(
            rule="fp8-dialect", severity="warning" if able else "error", subject="fp8",
            message=f"the weights are {', '.join(stored)}, the device computes in {dialect}: the same bytes are worth "
                    + ("twice as much there" if not device_other else "half as much there")
                    + ("; the engine re-encodes them" if able else ""),
            hint="re-encode the weights and correct their scales by that factor" if not able
                 else "nothing, if the engine also corrects the scales",
            facts={"scale_factor": BIAS_STEP, "stored": stored, "device": dialect})
