"""The rule about versions of engines and libraries that know a kind of model."""

from __future__ import annotations

from collections.abc import Iterator

from dayzero.schema import Finding
from dayzero.stages.preflight.rule import Case, rule

from .rules import LIBRARY, library_version, stated_texts, version_of
from .shipped import Shipped

_FACT = "supported_since"
_TARGET = "target file"


@rule("arch-unsupported")
def arch_unsupported(case: Case) -> Iterator[Finding]:
    """The engine or library is older than its support for this kind of model.

    ## What
    `supported_since` in [engine], or in the engine's profile, says since which version each model_type or class of an
    architecture is known. It is compared, as version numbers and not as text, with the version where the model runs:
    `transformers`, or the engine's own for facts of an engine's profile. The model_types inside of the config (of its
    text and vision parts) are looked at too. Code that the release ships itself (auto_map) makes it a warning, where
    that library runs such code. What a profile cannot answer is said as information: no version is stated, or the
    kind of model is not in the profile's list, or was in it already at the oldest version that the list was made from,
    and the stated version is older than that. A config.json that names neither architectures nor a model_type is a
    warning: there is nothing to compare.

    ## Why
    Start-up stops with an unknown model type, after the image was built and the weights were fetched.

    ## Example
    A model_type known since 5.11.0 on an installation of 5.3.0 (huggingface/transformers#42590); as text, 5.3 is larger
    than 5.11.

    ## How to fix
    Install at least the version that the finding names.
    """
    since = case.target.engine.facts.supported_since or {}
    types = list(stated_texts(case.release.config, "model_type"))
    said: set[str] = set()
    for name in dict.fromkeys([*types, *case.model.architectures]):
        installed, of_library = _compared(case, name)
        here, needs = version_of(installed), version_of(since.get(name))
        subject = name if name in types else case.model.model_type or name
        if here and needs and here < needs and subject not in said:
            said.add(subject)
            own = of_library and _ships_its_code(case)
            yield Finding(
                rule="arch-unsupported", severity="warning" if own else "error", subject=subject,
                message=f"{name} is supported since {since[name]}; {installed} is installed where it runs"
                        + (": only the release's own code can run it" if own else ""),
                hint=f"install at least {since[name]}" + (", or allow the release's code to run" if own else ""),
                facts={"needs": since[name], "installed": installed, **({} if name == subject else {"class": name})})
    yield from _nameless(case)
    if _of_profile(case):
        yield from _unanswered(case, since)
        yield from _before_the_list(case, since)


def _nameless(case: Case) -> Iterator[Finding]:
    """A config.json by which no class can be chosen. Configs of other names and cards do not have these keys."""
    if not case.model.model_type and not case.model.architectures \
            and any(file.name == "config.json" for file in case.release.files):
        yield Finding(rule="arch-unsupported", severity="warning", subject="model_type",
                      message="config.json names neither architectures nor a model_type: engines cannot choose a "
                              "class, and nothing could be compared",
                      hint="get config.json again from where the release is published, or add both keys")


def _before_the_list(case: Case, since: dict[str, str]) -> Iterator[Finding]:
    """A kind of model that the list has from its start, on a version from before it."""
    engine, names = case.target.engine, [*case.model.architectures, case.model.model_type]
    here, oldest = version_of(engine.version), version_of(engine.read_from)
    name = next((name for name in names if name in since), None)
    if name is not None and not since[name] and here and oldest and here < oldest:
        yield Finding(
            rule="arch-unsupported", severity="info", subject=case.model.model_type or name,
            message=f"{engine.name} {engine.version} is older than the list, which starts at {engine.read_from} and "
                    f"has {name} there: since when it is supported is not known",
            hint="look it up in the documentation of the installed version",
            facts={"listed_from": engine.read_from, "installed": engine.version})


def _unanswered(case: Case, since: dict[str, str]) -> Iterator[Finding]:
    """What the engine's profile says of this kind of model, where that cannot be compared with an installed version."""
    engine, asked = case.target.engine, list(dict.fromkeys([*case.model.architectures, case.model.model_type]))
    known = [name for name in asked if name in since]
    if not known and engine.read_at and _FACT in engine.complete and any(asked):
        yield Finding(
            rule="arch-unsupported", severity="info", subject=case.model.model_type or asked[0],
            message=f"{' or '.join(filter(None, asked))} is not in the list of {engine.name} {engine.read_at}: a later "
                    "version, or another way to run it there, may exist",
            hint="look it up in the documentation of the installed version",
            facts={"listed_version": engine.read_at, "installed": engine.version or None})
    for name in known[:1]:
        if since[name] and version_of(engine.version) is None:
            stated = f"the version {engine.version} cannot be compared" if engine.version else "no version is stated"
            yield Finding(
                rule="arch-unsupported", severity="info", subject=case.model.model_type or name,
                message=f"{name} is supported by {engine.name} since {since[name]}; {stated}",
                hint="state engine.version, and it is compared",
                facts={"needs": since[name], "installed": engine.version or None})


def _of_profile(case: Case) -> bool:
    """Whether the list of kinds of models is the one of an engine's profile."""
    return case.target.engine.sources.get(_FACT, _TARGET) != _TARGET


def is_listed(case: Case) -> bool:
    """Whether the engine's profile lists an architecture of the release, and no version from before that is stated."""
    since, installed = case.target.engine.facts.supported_since or {}, version_of(case.target.engine.version)
    first = version_of(case.target.engine.read_from)
    if installed and first and installed < first:
        return False
    for name in case.model.architectures if _of_profile(case) else ():
        needs = version_of(since.get(name))
        if name in since and not (installed and needs and installed < needs):
            return True
    return False


def _compared(case: Case, name: str) -> tuple[str | None, bool]:
    """The version that `supported_since` is about, and whether it is the library's: the library's for a model_type that
    the target states, the engine's for a profile's facts and for names of classes."""
    engine, library = case.target.engine, library_version(case)
    if engine.name != LIBRARY and _of_profile(case):
        return engine.version or None, False
    own, other = (engine.version or None, False), (library, True)
    first, second = (own, other) if name in case.model.architectures else (other, own)
    return first if first[0] else second


def _ships_its_code(case: Case) -> bool:
    """Whether the library can build the model from files of the release."""
    shipped = Shipped(case.release)
    present = [target.key for target in shipped.targets if target.module in shipped.sources]
    return "AutoConfig" in present and any(key.startswith("AutoModel") for key in present)
