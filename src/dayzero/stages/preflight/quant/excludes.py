"""Which entries of a list of excluded modules stand for nothing, and whether that matters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from os.path import commonprefix

import numpy as np

from dayzero.data.quantisation import statements
from dayzero.data.vocabulary import vocabulary
from dayzero.placement.split import TOWERS
from dayzero.schema import Release
from dayzero.schema.finding import Severity
from dayzero.stages.preflight.rule import Case

from .entries import Entries, is_specific
from .modules import stem

_EXPERT = re.compile(r"(?<=experts\.)[0-9]+(?=\.|$)")
_LAYER = re.compile(r"(?<![^.])(?P<number>[0-9]+)\*?(?![^.])")

Told = tuple[str, str, Severity]
"""(entry, what is wrong with it, severity)"""


def unmatched(case: Case) -> Iterator[Told]:
    """Entries that stand for no module of the engine, or without its list for none in the files."""
    said, runtime = case.stated, case.target.engine.facts.modules
    for entry in said.excluded.broken:
        if entry in said.excludes:
            yield entry, "is not a regular expression", "error"
    entries = [entry for entry in said.excludes if entry not in said.excluded.broken]
    if not entries:
        return
    if runtime:
        covered = _Covered(case, runtime)
        matched = Entries(map(_first_expert, entries), exact=True)
        left = set(matched.unmatched(map(_first_expert, runtime)))
        for entry in entries:
            if _first_expert(entry) in left and covered.by(entry):
                yield entry, "stands for no module that the engine has at run time", "error"
        for entry, fused in _missed(case, entries, runtime).items():
            if _first_expert(entry) not in left:
                yield entry, f"stands for parts of {fused}, which no entry stands for", "error"
    elif case.has_tensors and not case.target.partial and not case.release.is_incomplete:
        yield from _not_in_files(case, entries)


def _missed(case: Case, entries: list[str], runtime: list[str]) -> dict[str, str]:
    """Entry -> a module of the engine that nothing excludes, although it is made of parts that all are."""
    found: dict[str, str] = {}
    excluded = Entries(entries, exact=True)
    groups = case.target.engine.facts.fuses or statements().fusions
    names = set(runtime)
    for module in runtime:
        parent, _, leaf = module.rpartition(".")
        for parts in groups if parent and not excluded.match(module) else ():
            whole = [f"{parent}.{part}" for part in parts]
            by = [excluded.match(part) for part in whole]
            if all(by) and names.isdisjoint(whole) and _is_made_of(leaf, parts):
                found.setdefault(str(by[0]), module)
    return found


def _is_made_of(leaf: str, parts: list[str]) -> bool:
    """Whether a fused module's last word holds what differs in the names of the parts: gate_up_proj, qkv_proj."""
    start = len(commonprefix(parts))  # noqa: RUF071  (characters are meant)
    end = len(commonprefix([part[start:][::-1] for part in parts]))  # noqa: RUF071
    return leaf not in parts and all(part[start:len(part) - end] in leaf for part in parts)


def _not_in_files(case: Case, entries: list[str]) -> Iterator[Told]:
    left = set(Entries(map(_first_expert, entries)).unmatched(_file_names(case.release)))
    layers = len(case.model.layers)
    for entry in entries:
        if _first_expert(entry) not in left or _areas(entry):
            continue
        number = _LAYER.search(entry)
        if number and int(number["number"]) >= layers and case.model.mtp_layers == 0:
            continue  # prediction layers that this release does without
        yield entry, "stands for nothing in the files", "error" if is_specific(entry) else "info"


def _file_names(release: Release) -> Iterator[str]:
    """Names of all modules that have a tensor, of many experts the first."""
    for pattern in dict.fromkeys(group.pattern for group in release.tensors.groups):
        groups = [group for group in release.tensors.groups if group.pattern == pattern]
        for name in dict.fromkeys((stem(pattern), pattern.rpartition(".")[0])):
            for layer in np.unique(np.concatenate([group.layer.values for group in groups])):
                yield name.replace("{L}", str(layer)).replace("{E}", "0")


def _first_expert(name: str) -> str:
    return _EXPERT.sub("0", name)


class _Covered:
    """What the engine's list of modules speaks of at all: it may be a sample of one layer."""

    def __init__(self, case: Case, runtime: list[str]) -> None:
        self.runtime = runtime
        self.layers = {int(found["number"]) for name in runtime for found in [_LAYER.search(name)] if found}
        self.count = len(case.model.layers)
        self.words = {segment for name in runtime for segment in name.split(".")}
        self.plain = {stem(family.pattern).rpartition(".")[2] for family in case.model.families
                      if len(family.shape) == 1 and family.pattern.endswith(".weight")}

    def by(self, entry: str) -> bool:
        """Whether the engine's list would have a module that the entry is about."""
        number = _LAYER.search(entry)
        if number and int(number["number"]) < self.count and int(number["number"]) not in self.layers:
            return False
        if entry.rpartition(".")[2] in self.plain:  # norms are never quantised
            return False
        areas = _areas(entry)
        return not areas or any(self.words.intersection(words) for words in areas)


def _areas(entry: str) -> list[frozenset[str]]:
    """Words of each part outside of the decoder's layers (towers, embedding, head, prediction) that it is about."""
    found = Entries([entry], exact=True)
    return [words for words in _outside() if not _LAYER.search(entry)
            and (words.intersection(re.split(r"[^A-Za-z0-9_]+", entry)) or any(found.match(word) for word in words))]


def _outside() -> list[frozenset[str]]:
    words = vocabulary()
    parts = [words.scopes[name] for name in (*TOWERS, "mtp")]
    ends = [role.words for role in words.roles if role.role in ("head", "embedding")]
    return [frozenset(part) for part in (*parts, *ends)]
