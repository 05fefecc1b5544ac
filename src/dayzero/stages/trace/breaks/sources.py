"""The source text of a traced model: the release's own files, or those of the library's model. Nothing is imported."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from dayzero.schema import OpGraph, Release

_LIBRARY = "transformers"


class Source(NamedTuple):
    """One file."""

    name: str
    """Below its package."""
    text: str
    """Its content."""


def sources(graph: OpGraph, release: Release) -> tuple[Source, ...]:
    """Files that hold the code of the model: of the release where that ran, else of the library; and those in which
    control flow was seen."""
    found = dict(_own(release)) if graph.own and release.root else dict(_of_library(release.config))
    for site in graph.control_flow:
        package, _, rest = site.file.partition("/")
        if site.file not in found and package == _LIBRARY:
            found |= dict(_read(_package(), rest))
    return tuple(Source(name, text) for name, text in sorted(found.items()))


def _own(release: Release) -> Iterator[tuple[str, str]]:
    for file in release.files:
        if file.role == "code" and file.name.endswith(".py"):
            path = Path(release.root or "", file.name)
            if path.is_file():
                yield file.name, path.read_text(encoding="utf-8", errors="replace")


def _of_library(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Model files of every model_type in the config, in folders of that name, or of its beginning."""
    models = _package() / "models"
    for model_type in dict.fromkeys(_model_types(config)):
        name = model_type.replace("-", "_")
        folders = [models / name[:end] for end in (len(name), *_cuts(name))]
        folder = next((folder for folder in folders if folder.is_dir()), None)
        for path in sorted(folder.glob("modeling_*.py")) if folder else ():
            yield from _read(_package(), str(path.relative_to(_package())))


def _cuts(name: str) -> list[int]:
    """Where the name can end earlier: before each underscore, the last first."""
    return [index for index in range(len(name) - 1, 0, -1) if name[index] == "_"]


def _model_types(config: dict[str, Any]) -> Iterator[str]:
    for key, value in config.items():
        if key == "model_type" and isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from _model_types(value)


def _package() -> Path:
    spec = find_spec(_LIBRARY)
    return Path(spec.origin).parent if spec and spec.origin else Path("/nonexistent")


def _read(root: Path, name: str) -> Iterator[tuple[str, str]]:
    path = root / name
    if path.is_file():
        yield f"{_LIBRARY}/{name}", path.read_text(encoding="utf-8", errors="replace")
