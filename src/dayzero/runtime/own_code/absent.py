"""Modules that shipped code imports and that are not there: its own files without the dot that they need as a package,
and packages that are not installed.

Much of what such code imports first is for images, sound or training. A package that is not installed can be imported
by it, and what is made with it is nothing: to give it tensors, to count it or to loop over it is an error that says
what is missing and where. Imports that the code itself guards, or makes only inside functions, fail as they do
elsewhere. Only in a confined process.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from dayzero.runtime.library import file_of
from dayzero.runtime.stand_ins.recording import MissingStandIn

from . import rewriting

_GUARDS = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


class Nothing:
    """What an absent package has under some name."""

    def __init__(self, dotted: str) -> None:
        self.__dict__["_dotted"] = dotted

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(f"{self._dotted}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if len(arguments) == 1 and not named and (isinstance(arguments[0], type) or hasattr(arguments[0], "__code__")):
            return arguments[0]  # a decorator
        if any(hasattr(type(value), "is_meta") for value in (*arguments, *named.values())):
            raise self._missing()
        return Nothing(f"{self._dotted}()")

    def __getitem__(self, _key: Any) -> Any:
        return Nothing(f"{self._dotted}[]")

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __mro_entries__(self, _bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __instancecheck__(self, _instance: Any) -> bool:
        return False

    __subclasscheck__ = __instancecheck__

    def __len__(self) -> int:
        raise self._missing()

    def __iter__(self) -> Iterator[Any]:
        raise self._missing()

    def __bool__(self) -> bool:
        return True

    def _missing(self) -> Exception:
        frame = _user(sys._getframe(1))
        where = file_of(frame.f_globals.get("__name__", "?")) if frame else "?"
        return MissingStandIn(f"{self._dotted}, which is not installed,", where, frame.f_lineno if frame else 0)


class _Module(ModuleType):
    """A module of a package that is not installed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return Nothing(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves one release's package and what it imports; the first of sys.meta_path."""

    def __init__(self, package: str, root: Path) -> None:
        self._package, self._root = package, root
        self._own: dict[str, bool] = {}
        self._specs: dict[str, Any] = {}

    @property
    def absent(self) -> tuple[str, ...]:
        """Packages that were asked for and are not installed."""
        return tuple(name for name, own in self._own.items() if not own)

    def find_spec(self, fullname: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:  # fmt: skip
        """A spec for what the release's code asks for and nothing else has."""
        if fullname.startswith(f"{self._package}."):
            return rewriting.spec(fullname, path, target)
        top = fullname.partition(".")[0]
        if top not in self._own and not (fullname == top and self._asked(top)):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=not self._own[top])

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The release's own module of that name, or one that has nothing."""
        if not self._own[spec.name.partition(".")[0]]:
            return _Module(spec.name)
        module = importlib.import_module(f"{self._package}.{spec.name}")
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Both have run, or there is nothing to run."""
        name = module.__spec__.name if module.__spec__ else ""
        if name in self._specs:
            module.__spec__ = self._specs[name]

    def _asked(self, name: str) -> bool:
        """Whether the release's code needs this name, and nothing else has it."""
        frame = _importer()
        if frame is None or not frame.f_globals.get("__name__", "").startswith(f"{self._package}."):
            return False
        if name in sys.stdlib_module_names or any(
                finder.find_spec(name, None) for finder in sys.meta_path if finder is not self):
            return False
        own = (self._root / f"{name}.py").is_file() or any((self._root / name).glob("*.py"))
        if own or (frame.f_code.co_name == "<module>" and not _guarded(frame.f_code.co_filename, frame.f_lineno)):
            self._own[name] = own
        return name in self._own


def install(package: str, root: Path) -> Finder:
    """The finder of a release's package, in force."""
    finder = Finder(package, root)
    sys.meta_path.insert(0, finder)
    return finder


def _importer() -> FrameType | None:
    """The frame with the import."""
    return _user(sys._getframe(1))


def _user(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not of this program, torch or the machinery of imports."""
    ours = __name__.partition(".")[0]
    while frame is not None and (frame.f_globals.get("__name__", "").partition(".")[0] in (ours, "torch")
                                 or frame.f_code.co_filename.startswith("<frozen importlib")):
        frame = frame.f_back
    return frame


@functools.cache
def _tries(file: str) -> tuple[range, ...]:
    """Lines of a file whose failed imports it catches."""
    tree = ast.parse(Path(file).read_bytes())
    return tuple(range(node.lineno, (node.body[-1].end_lineno or node.lineno) + 1) for node in ast.walk(tree)
                 if isinstance(node, ast.Try) and any(map(_catches, node.handlers)))


def _catches(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or any(isinstance(node, ast.Name) and node.id in _GUARDS
                                       for node in ast.walk(handler.type))


def _guarded(file: str, line: int) -> bool:
    return any(line in lines for lines in _tries(file))
