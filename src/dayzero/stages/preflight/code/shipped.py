"""The Python files that a release ships, read as text and syntax; nothing of them is ever run or imported."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from dayzero.schema import Release

from .imports import Need, bindings, needs

LIMIT = 8 * 2**20
"""Bytes of the longest file that is read."""
ENTRY = ("configuration_*", "modeling_*", "tokenization_*", "processing_*", "*_processing_*", "processor_*")
"""Files that a library loads by convention, where no auto_map names any."""


@dataclass(frozen=True)
class Target:
    """One entry of an auto_map: which class of which file a library is to load."""

    key: str
    """The library's class that stands for it, such as AutoConfig."""
    module: str
    """Name of the file, without its ending."""
    name: str
    """Name of the class."""


@dataclass(frozen=True)
class Source:
    """One shipped file."""

    file: str
    """Its name in the release."""
    tree: ast.Module | None
    """Its syntax; None where it is none that this Python knows."""
    problem: str
    """Why there is no syntax."""

    @property
    def module(self) -> str:
        """Its dotted name from the top of the release."""
        return self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """What it imports."""
        return tuple(needs(self.tree)) if self.tree else ()

    @cached_property
    def binds(self) -> tuple[frozenset[str], bool]:
        """Names that it defines, and whether these are all."""
        return bindings(self.tree) if self.tree else (frozenset(), False)


class Shipped:
    """All shipped code of a release."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.root = Path(release.root) if release.root else None

    @cached_property
    def sources(self) -> dict[str, Source]:
        """The files by dotted name."""
        files = [file.name for file in self.release.files if file.name.endswith(".py")]
        read = (_read(self.root, name) for name in files if self.root)
        return {source.module: source for source in read if source is not None}

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """What the auto_map of the config and of its companions names inside the release."""
        found: dict[Target, None] = {}
        for table in (self.release.config, *self._companions()):
            found |= dict.fromkeys(_targets(table.get("auto_map")))
        return tuple(found)

    def _companions(self) -> Iterator[Mapping[str, Any]]:
        """The other small JSON tables that can hold an auto_map."""
        for file in self.release.files:
            if self.root and "/" not in file.name and fnmatchcase(file.name, "*_config.json") and file.size < LIMIT:
                try:
                    table = json.loads((self.root / file.name).read_text(encoding="utf-8"))
                except (OSError, ValueError, RecursionError):
                    continue  # what is not a readable table holds no auto_map
                if isinstance(table, dict):
                    yield table

    @cached_property
    def loaded(self) -> frozenset[str]:
        """Modules that a library which loads the release imports: what auto_map names, or what is named as usual where
        there is no auto_map, and what these import from beside them."""
        start = {target.module for target in self.targets} or {
            module for module in self.sources if any(fnmatchcase(module, pattern) for pattern in ENTRY)}
        seen: set[str] = set()
        wanted = sorted(start & self.sources.keys())
        while wanted:
            module = wanted.pop()
            if module not in seen:
                seen.add(module)
                wanted += [near for need in self.sources[module].needs
                           if need.level and (near := self.beside(module, need)) in self.sources]
        return frozenset(seen)

    def beside(self, module: str, need: Need) -> str:
        """Dotted name, from the top of the release, of the module that a relative import means."""
        source = self.sources[module]
        package = module.split(".") if source.file.endswith("__init__.py") else module.split(".")[:-1]
        kept = package[: len(package) - need.level + 1] if need.level > 1 else package
        path = ".".join([*kept, *([need.module] if need.module else [])])
        inner = f"{path}.{need.name}" if path else need.name or ""
        return inner if inner in self.sources else path


def _targets(table: object) -> Iterator[Target]:
    """`module.Class`, alone or in a list; a class of another repository (`repo--module.Class`) is not looked at."""
    for key, value in table.items() if isinstance(table, Mapping) else ():
        for text in value if isinstance(value, list) else [value]:
            module, _, name = text.rpartition(".") if isinstance(text, str) else ("", "", "")
            if module and name.isidentifier() and all(part.isidentifier() for part in module.split(".")):
                yield Target(key=str(key), module=module, name=name)


def _read(root: Path, file: str) -> Source | None:
    """None where the file is not here (only listed by a hub)."""
    path = root / file
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > LIMIT:
            return Source(file=file, tree=None, problem="is too long to be looked at")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the shipped code's own escapes and comparisons
            return Source(file=file, tree=ast.parse(path.read_bytes(), str(path)), problem="")
    except OSError as error:
        return Source(file=file, tree=None, problem=f"cannot be read: {error.strerror}")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        return Source(file=file, tree=None, problem=f"is not Python that can be parsed{where}")


def lines(places: Iterable[tuple[str, int]]) -> list[str]:
    """`file:line` of each place, each once, in order."""
    return [f"{file}:{line}" for file, line in sorted(set(places))]
