"""Whether what a release's code imports is there in the installed packages.

First by looking at the packages' files. Only what is not found that way is tried, in a process of its own, with the
installed packages alone: some make their names when they are asked for.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .imports import bindings, stars

PATIENCE = 120.0
"""Seconds that trying may take; what has no answer by then is not known."""
_MARK = "absent:"
_TRY = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv[1])
absent = []
for module, name in json.loads(sys.argv[2]):
    try:
        found = __import__(module, fromlist=[name or "__name__"])
        if name and not hasattr(found, name):
            absent.append([module, name])
    except ModuleNotFoundError as error:
        if error.name and (module + ".").startswith(error.name + "."):
            absent.append([module, name])
    except BaseException:
        pass
print("\\nabsent:" + json.dumps(absent))
"""


@dataclass(frozen=True)
class _Module:
    file: Path | None
    """Its source; None: compiled, or a folder without one."""
    folders: tuple[Path, ...]
    """Where its submodules are."""


class Installed:
    """The packages that this Python can import, apart from what lies in one folder (the release's own)."""

    def __init__(self, apart_from: Path | None = None) -> None:
        self.apart_from = apart_from.resolve() if apart_from else None

    def has_package(self, name: str) -> bool:
        """Whether a package of that (top) name is there; none is imported for it."""
        return name in sys.stdlib_module_names or self._top(name) is not None

    def version(self, name: str) -> str | None:
        """Version of an installed package."""
        try:
            return importlib.metadata.version(name) if self.has_package(name) else None
        except importlib.metadata.PackageNotFoundError:
            return None

    def absent(self, wanted: Iterable[tuple[str, str | None]]) -> set[tuple[str, str | None]]:
        """Those (module, name) that are certainly not there, of packages that are."""
        doubtful = sorted({pair for pair in wanted if _is_harmless(pair[0]) and not self._seen(*pair)}, key=str)
        return self._tried(doubtful) if doubtful else set()

    def _seen(self, module: str, name: str | None) -> bool:
        found = self._locate(module)
        if found is None:
            return False
        if name in (None, "*") or self._locate(f"{module}.{name}") is not None:
            return True
        return found.file is None or self._binds(found.file, str(name), set())

    def _binds(self, file: Path, name: str, seen: set[Path]) -> bool:
        """Whether the source binds a name, itself or by a star import."""
        seen.add(file)
        tree = _parsed(file)
        if tree is None or name in bindings(tree)[0]:
            return True
        for level, module in stars(tree):
            near = self._near(file, level, module)
            if near is not None and near not in seen and _mentions(near, name) and self._binds(near, name, seen):
                return True
        return False

    def _near(self, file: Path, level: int, module: str) -> Path | None:
        if not level:
            found = self._locate(module)
            return found.file if found else None
        base = file.parent
        for _ in range(level - 1):
            base = base.parent
        return _inside(base, module.split(".")).file if module else base / "__init__.py"

    def _top(self, name: str) -> _Module | None:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        folders = tuple(Path(folder) for folder in spec.submodule_search_locations or ())
        places = [*folders, *([Path(spec.origin)] if spec.origin else [])]
        if self.apart_from and any(place.resolve().is_relative_to(self.apart_from) for place in places):
            return None
        file = Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
        return _Module(file=file, folders=folders)

    def _locate(self, module: str) -> _Module | None:
        top, *rest = module.split(".")
        found = self._top(top)
        for part in rest:
            if found is None:
                return None
            inner = [_inside(folder, [part]) for folder in found.folders]
            found = next((one for one in inner if one.file or one.folders), None) or _compiled(found.folders, part)
        return found

    def _tried(self, doubtful: list[tuple[str, str | None]]) -> set[tuple[str, str | None]]:
        """What a process that imports the modules does not find. Empty where it gives no answer."""
        path = [entry for entry in sys.path if entry and not self._own(Path(entry))]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        try:
            done = subprocess.run([sys.executable, "-I", "-c", _TRY, json.dumps(path), json.dumps(doubtful)],
                                  capture_output=True, text=True, timeout=PATIENCE, env=environment, cwd=sys.prefix)
        except (OSError, subprocess.TimeoutExpired):
            return set()
        _, found, answer = done.stdout.rpartition(_MARK)
        return {(module, name) for module, name in json.loads(answer)} if found else set()

    def _own(self, entry: Path) -> bool:
        return self.apart_from is not None and entry.resolve().is_relative_to(self.apart_from)


def _is_harmless(module: str) -> bool:
    """Whether a module may be imported, whoever asks for it: it is no program to be started, and one of the standard
    library only if it is loaded anyway, for some of the others open a browser, a window or a test run."""
    parts = module.split(".")
    return "__main__" not in parts and (parts[0] not in sys.stdlib_module_names or module in sys.modules)


def _inside(folder: Path, parts: list[str]) -> _Module:
    """The module of that name below a folder; one without file and folders where there is none."""
    path = folder.joinpath(*parts)
    if (path / "__init__.py").is_file():
        return _Module(file=path / "__init__.py", folders=(path,))
    source = path.with_name(f"{path.name}.py")
    if source.is_file():
        return _Module(file=source, folders=())
    return _Module(file=None, folders=(path,) if path.is_dir() and any(path.glob("*.py")) else ())


def _compiled(folders: Iterable[Path], name: str) -> _Module | None:
    found = any(True for folder in folders for _ in folder.glob(f"{name}.*.so") if folder.is_dir())
    return _Module(file=None, folders=()) if found else None


@lru_cache(maxsize=512)
def _parsed(file: Path) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _mentions(file: Path, name: str) -> bool:
    """Whether it is worth parsing: the name occurs, or there are more star imports to follow."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "import *" in text or re.search(rf"\b{re.escape(name)}\b", text) is not None
