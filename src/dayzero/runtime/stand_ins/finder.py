"""Serves kernel libraries that are not installed: their modules can be imported, the names that the table knows are
stand-ins, all others are placeholders."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from types import ModuleType
from typing import Any

from dayzero.data.stand_ins import Package, Row, StandInTable

from .placeholder import placeholder
from .recording import counting


class _Module(ModuleType):
    """A module of an absent library."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        finder: Finder = self.__dict__["finder"]
        child = f"{self.__name__}.{name}"
        value = importlib.import_module(child) if child in finder.modules else finder.attribute(self.__name__, name)
        self.__dict__[name] = value
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds, loads and describes the modules of absent packages; at the end of sys.meta_path."""

    def __init__(self, table: StandInTable, absent: Iterable[str]) -> None:
        self.absent = frozenset(absent)
        self._table = table
        self._rows: dict[str, dict[str, Row]] = {}
        for row in table.stand_in:
            for name in row.names:
                module, _, attribute = name.partition(":")
                self._rows.setdefault(module, {})[attribute] = row
        parts = [module.split(".") for module in self._rows]
        self.modules = frozenset(".".join(each[:n]) for each in parts for n in range(1, len(each) + 1))
        self._served: dict[str, Any] = {}

    def find_spec(self, fullname: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:  # fmt: skip
        """A spec for any module of an absent package."""
        if fullname.partition(".")[0] not in self.absent:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin="stand-in", is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """An empty module of our kind."""
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Put the stand-ins that the table has for this module into it."""
        package, _, rest = module.__name__.partition(".")
        rows = self._rows.get(module.__name__, {})
        module.__dict__["finder"] = self
        if not rest:
            module.__dict__["__version__"] = self._table.packages[package].version
        module.__dict__["__all__"] = [*rows]
        for attribute, row in rows.items():
            module.__dict__[attribute] = self._serve(row)

    def attribute(self, module: str, name: str) -> Any:
        """What a module has under a name that the table does not give it: the stand-in that has this name elsewhere in
        the package (libraries move their functions), if there is one and only one; else a placeholder."""
        package = module.partition(".")[0]
        rows = {row.names[0]: row for known, found in self._rows.items() if known.partition(".")[0] == package
                for attribute, row in found.items() if attribute == name}
        return self._serve(*rows.values()) if len(rows) == 1 else placeholder(f"{module}:{name}")

    def _serve(self, row: Row) -> Any:
        """The same object for all names of a row; its calls, or those of a module's `forward`, are counted."""
        call = row.names[0]
        if call not in self._served:
            value = resolve(row.adapter)
            if isinstance(value, type):
                if hasattr(value, "forward"):
                    value.forward = counting(call, row.op, value.forward)
            elif callable(value) and row.counted:
                value = counting(call, row.op, value)
            self._served[call] = value
        return self._served[call]

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterable[importlib.metadata.Distribution]:
        """Metadata of the absent packages, so that a version that shipped code asks for is there."""
        wanted = None if context is None else context.name
        for package in sorted(self.absent):
            facts = self._table.packages[package]
            for name in facts.distributions:
                if wanted is None or _same(wanted, name):
                    yield _Distribution(name, package, facts)


class _Distribution(importlib.metadata.Distribution):
    """Name, version and top-level module of an absent package."""

    def __init__(self, name: str, package: str, facts: Package) -> None:
        self._files = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {facts.version}\n",
            "top_level.txt": f"{package}\n",
        }

    def read_text(self, filename: str) -> str | None:
        """The text of one of the two files that there are."""
        return self._files.get(filename)

    def locate_file(self, path: Any) -> Any:
        """No file is on a disk."""
        return PurePosixPath("/nonexistent") / path


def _same(one: str, other: str) -> bool:
    return one.replace("_", "-").lower() == other.replace("_", "-").lower()


def resolve(adapter: str) -> Any:
    """The object that the table calls `module:attribute`, a module of this package."""
    module, _, attribute = adapter.partition(":")
    return getattr(importlib.import_module(f"{__package__}.{module}"), attribute)


def absent(table: StandInTable) -> list[str]:
    """Packages of the table that are not installed."""
    return [name for name in table.packages
            if name not in sys.modules and importlib.machinery.PathFinder.find_spec(name) is None]
