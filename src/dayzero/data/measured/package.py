"""Where measured tables are: an installed package, found without importing it, or a folder of the same form."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.version import InvalidVersion, Version

from dayzero.errors import NotPossible, TargetError

from .mapping import mapping

VARIABLE = "DAYZERO_MEASURED"
"""Environment variable with a folder that is taken instead of the package."""
EXTRA = "pip install 'dayzero[measured]', or set DAYZERO_MEASURED to a folder of such tables"


@dataclass(frozen=True, order=True)
class File:
    """A table: system/family/engine/version/name."""

    system: str
    """Folder of the device."""
    family: str
    """Folder of the kind of operator."""
    engine: str
    """Folder of the engine, or of the library, that ran it."""
    version: str
    """Its version."""
    path: Path
    """The file."""

    @property
    def newness(self) -> Version:
        """The version, comparable; what is none comes first."""
        try:
            return Version(self.version)
        except InvalidVersion:
            return Version("0.dev0")


@dataclass(frozen=True)
class Source:
    """A folder of tables."""

    folder: Path
    """system/family/engine/version/name below it."""
    name: str
    """What predictions call it."""

    @cached_property
    def files(self) -> tuple[File, ...]:
        """All tables, sorted."""
        made = []
        for path in self.folder.glob("*/*/*/*/*.parquet"):
            system, family, engine, version, _ = path.relative_to(self.folder).parts
            made.append(File(system, family, engine, version, path))
        return tuple(sorted(made))

    @property
    def unmapped(self) -> tuple[str, ...]:
        """Names of tables that no row of the mapping reads, each once."""
        return tuple(sorted({file.path.name for file in self.files} - {row.file for row in mapping().tables}))


def source(folder: Path | None = None) -> Source:
    """The tables of a folder, else those of the folder that DAYZERO_MEASURED names, else those of the installed
    package. Raises TargetError where a folder holds no tables, NotPossible where none is given or installed."""
    named = folder or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is not None:
        inner = named / mapping().folder
        made = Source(inner if inner.is_dir() else named, str(named))
        if not made.files:
            raise TargetError(f"{named} holds no measured tables",
                              "give a folder that has system/family/engine/version/*.parquet below it")
        return made
    known = mapping()
    try:
        package = distribution(known.distribution)
    except PackageNotFoundError:
        raise NotPossible(f"measured tables of operators are not installed ({known.distribution})", EXTRA) from None
    return Source(Path(str(package.locate_file(known.folder))), f"{known.distribution} {package.version}")
