"""Rules about the code that a release ships, which is read and never run, and about the library that it needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.version import Version

from dayzero.data.engines import NEUTRAL
from dayzero.data.libraries import removals
from dayzero.schema import Finding
from dayzero.schema.finding import Severity
from dayzero.stages.preflight.rule import Case, rule

from .imports import Need
from .installed import Installed
from .shipped import Shipped, lines
from .untrusted import suspicions

LIBRARY = "transformers"
_EVERYWHERE = ("torch", LIBRARY)
"""Packages that every machine has on which a release's code runs."""
_RUNS_SHIPPED_CODE = (NEUTRAL, LIBRARY)
"""Engines of which nothing says that they have model code of their own."""
Places = dict[str, list[tuple[str, Need]]]
"""Dotted name -> (file, need) of every place that asks for it."""


def version_of(text: str | None) -> Version | None:
    """A version number; None where none is stated, it is a branch, say, or has thousands of digits: then nothing can be
    compared."""
    try:
        return Version(text) if text else None
    except ValueError:  # InvalidVersion is one, and so is a number with too many digits
        return None


def library_version(case: Case) -> str | None:
    """The version that the target states of the library which loads releases."""
    engine = case.target.engine
    return engine.facts.transformers or (engine.version if engine.name == LIBRARY else None) or None


@rule("code-import")
def code_import(case: Case) -> Iterator[Finding]:
    """The code that the release ships asks for a name that is not there.

    ## What
    Every import of the shipped files that a library loads: names that the library removed in the version where the
    model runs (`transformers` and `removed_in` in [engine], and removals that are known here; or what is installed here
    if the target states no version); modules and names of files that the release should ship itself; classes that
    auto_map names; packages that are not installed, which is a warning. An import that the code itself guards, by
    catching its failure or by a condition, is no finding. The code is read, not run.

    ## Why
    Loading stops at the first of them, on every rank, after the weights were fetched.

    ## Example
    is_torch_fx_available went away in version 5 of transformers; releases that import it without a guard stopped
    loading (huggingface/transformers#44615).

    ## How to fix
    Install the version that the code was written for, take a newer revision of the release, or guard the import.
    """
    shipped = Shipped(case.release)
    if not shipped.sources:
        return
    yield from _broken(shipped)
    if not case.target.partial:
        yield from _own(shipped)
    yield from _foreign(case, shipped)


def _finding(subject: str, message: str, hint: str, severity: Severity = "error", **facts: object) -> Finding:
    return Finding(rule="code-import", severity=severity, subject=subject, message=message, hint=hint, facts=facts)


def _broken(shipped: Shipped) -> Iterator[Finding]:
    for module in sorted(shipped.loaded):
        source = shipped.sources[module]
        if source.tree is None:
            yield _finding(module, f"{source.file} {source.problem}", "get the file again, or use a newer Python")


def _own(shipped: Shipped) -> Iterator[Finding]:
    """What the release promises of itself: targets of auto_map, and imports of files beside."""
    for target in shipped.targets:
        source, subject = shipped.sources.get(target.module), f"{target.module}.{target.name}"
        if source is None:
            yield _finding(subject, f"auto_map's {target.key} is in {target.module}.py, which is not in the release",
                           "get the file, or take the entry out of auto_map", auto_map=target.key)
        elif source.tree and source.binds[1] and target.name not in source.binds[0]:
            yield _finding(subject, f"auto_map's {target.key} names {target.name}, which {source.file} does not define",
                           "correct auto_map, or get the file of the same revision", auto_map=target.key)
    missing: Places = defaultdict(list)
    for module in sorted(shipped.loaded):
        for need in shipped.sources[module].needs:
            if need.level and not need.guarded and not need.instead_of:
                path = shipped.beside(module, need)
                near = shipped.sources.get(path)
                if near is None:
                    missing[path or need.dotted].append((shipped.sources[module].file, need))
                elif near.tree and near.binds[1] and _takes(path, need) and need.name not in near.binds[0]:
                    missing[f"{path}.{need.name}"].append((shipped.sources[module].file, need))
    for subject, places in sorted(missing.items()):
        yield _finding(subject, f"the release's own code imports {subject}, which the release does not ship",
                       "get all of the release's files, of one revision", files=_where(places))


def _takes(path: str, need: Need) -> bool:
    """Whether a relative import takes a name out of the module at `path`, not the module itself."""
    return need.name not in (None, "*") and path.rpartition(".")[2] != need.name


def _where(places: list[tuple[str, Need]]) -> list[str]:
    return lines((file, need.line) for file, need in places)


def _foreign(case: Case, shipped: Shipped) -> Iterator[Finding]:
    """What the loaded files take from packages."""
    asked: Places = defaultdict(list)
    for module in sorted(shipped.loaded):
        for need in shipped.sources[module].needs:
            if not need.level and not need.guarded:
                asked[need.dotted].append((shipped.sources[module].file, need))
    gone = {name: removal for name in asked if (removal := _removed(case, name))}
    for name, (since, installed) in sorted(gone.items()):
        yield _finding(name, f"{name} was removed in {since}; {installed} is installed where it runs",
                       f"install a version below {since}, or take a newer revision of the release", removed_in=since,
                       installed=installed, files=_where(asked[name]))
    here = Installed(shipped.root)
    names: Places = {name: places for name, places in asked.items()
                     if name not in gone and not all(need.used for _, need in places)}
    packages = {name.partition(".")[0] for name in names}
    absent = {package for package in packages if not here.has_package(package)}
    yield from _packages(case, here, {package: [place for name, places in names.items() for place in places
                                                if name.partition(".")[0] == package] for package in absent})
    yield from _names(case, here, {name: places for name, places in names.items()
                                   if name.partition(".")[0] in packages - absent})


def _packages(case: Case, here: Installed, absent: Places) -> Iterator[Finding]:
    """Packages that are not installed here: that says something of the place where the model runs only if the target
    states no version of its own and this machine could run the code."""
    runs_here = library_version(case) is None and all(here.has_package(name) for name in _EVERYWHERE)
    for package, places in sorted(absent.items()):
        if package in _EVERYWHERE:
            continue
        lazy = all(need.lazy or need.instead_of for _, need in places)
        yield _finding(package, f"the release's code needs the package {package}, which is not installed here",
                       "install it where the model runs", "warning" if runs_here and not lazy else "info",
                       files=_where(places))


def _names(case: Case, here: Installed, names: Places) -> Iterator[Finding]:
    """Names that the installed packages do not have, of packages whose installed version is the one that counts."""
    stated = library_version(case)
    pairs: dict[tuple[str, str | None], str] = {}
    for name, places in names.items():
        package = name.partition(".")[0]
        if stated is None or (package == LIBRARY and here.version(package) == stated):
            need = places[0][1]
            pairs[need.module, None if need.name == "*" else need.name] = name
    absent = here.absent(pairs)
    missing = {pairs[pair] for pair in absent}
    for pair in sorted(absent, key=str):
        places = [(file, need) for file, need in names[pairs[pair]] if not need.used]
        if all(need.instead_of and not any(tried.dotted in missing for tried in need.instead_of)
               for _, need in places):
            continue
        package = pairs[pair].partition(".")[0]
        version = here.version(package) or ""
        yield _finding(pairs[pair], f"{pairs[pair]} is not in {package} {version}, which is installed here",
                       f"install the version of {package} that the code was written for, or take a newer revision of "
                       "the release", "error" if stated or case.target.engine.name in _RUNS_SHIPPED_CODE else "warning",
                       installed=version, files=_where(places))


def _removed(case: Case, name: str) -> tuple[str, str] | None:
    """(version that removed it, installed version), where the engine's facts say that it is gone; where they do not
    speak of it and the target states the library's version, where the facts shipped here do."""
    stated = [(gone, since, None) for gone, since in (case.target.engine.facts.removed_in or {}).items()]
    known = [(one.name, one.since, one.until) for one in removals()] if library_version(case) else []
    for gone, since, until in stated if any(_same(name, gone) for gone, _, _ in stated) else known:
        if not _same(name, gone):
            continue
        installed, limit, again = _of_package(case, gone.partition(".")[0]), version_of(since), version_of(until)
        here = version_of(installed)
        if installed and here and limit and here >= limit and not (again and here >= again):
            return since, installed
    return None


def _same(name: str, gone: str) -> bool:
    """Whether a name is the one that is gone, is inside of it, or is what a package above passes on of it."""
    module, _, last = name.rpartition(".")
    return name == gone or name.startswith(f"{gone}.") or (
        gone.endswith(f".{last}") and bool(module) and gone.startswith(f"{module}."))


def _of_package(case: Case, package: str) -> str | None:
    engine = case.target.engine
    if package == LIBRARY and library_version(case):
        return library_version(case)
    if package == engine.name.replace("-", "_") and engine.version:
        return engine.version
    return Installed().version(package) if library_version(case) is None else None


def stated_texts(config: Mapping[str, Any], key: str) -> Iterator[str]:
    """Texts under a key, of the config and of the tables inside of it."""
    if isinstance(config.get(key), str):
        yield config[key]
    for value in config.values():
        if isinstance(value, Mapping):
            yield from stated_texts(value, key)


@rule("transformers-older", "warning")
def transformers_older(case: Case) -> Iterator[Finding]:
    """The release was saved by a newer version of the library than the one that is to load it.

    ## What
    `transformers_version` in the config, compared with `transformers` in [engine]. A newer major version is a warning,
    anything else is information: the config states which version wrote it, not which it needs.

    ## Why
    Newer versions write keys that older ones do not read, and say nothing about it.

    ## Example
    The rotary base moved into rope_parameters with version 5 (deepspeedai/DeepSpeed#8341): read by a version 4, the
    default base takes its place.

    ## How to fix
    Install the version that the config states, or a later one.
    """
    declared = next(stated_texts(case.release.config, "transformers_version"), None)
    installed = library_version(case)
    wrote, reads = version_of(declared), version_of(installed)
    if wrote and reads and reads.release < wrote.release:
        yield Finding(
            rule="transformers-older", severity="warning" if reads.major < wrote.major else "info",
            subject="transformers_version",
            message=f"the config was written by {LIBRARY} {declared}, and {installed} is to read it",
            hint=f"install {declared} or later", facts={"declared": declared, "installed": installed})


@rule("code-untrusted", "info")
def code_untrusted(case: Case) -> Iterator[Finding]:
    """The code that the release ships does something that deserves a look before it is allowed to run.

    ## What
    In any shipped file: network access, other programs, evaluated text, native libraries, unpickling, writing and
    deleting files, secrets in the environment, long encoded text. Each kind in each file is one finding, with the
    lines. The code is read, not run; that nothing is found proves nothing.

    ## Why
    trust_remote_code runs these files with all rights of the user.

    ## Example
    torch.load without weights_only=True runs what the file says (CVE-2025-32434 shows that even the safe mode had a
    hole before version 2.6).

    ## How to fix
    Read the lines. Run the release's code only in a container without network and credentials, or use an engine that
    has the model built in.
    """
    for source in Shipped(case.release).sources.values():
        found: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for kind, line, what in suspicions(source.tree) if source.tree else ():
            found[kind].append((line, what))
        for kind, places in sorted(found.items()):
            places.sort()
            words = ", ".join(dict.fromkeys(what for _, what in places))
            yield Finding(
                rule="code-untrusted", severity="info", subject=f"{source.file}:{places[0][0]}",
                message=f"{source.file} {kind}: {words}"[:300],
                hint="read these lines before you let the release's code run",
                facts={"kind": kind, "file": source.file, "lines": sorted({line for line, _ in places})})
