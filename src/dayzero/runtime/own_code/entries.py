"""Which classes of a release's own files a library is to load: its auto_map, read as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from dayzero.text import printable

CONFIG = "AutoConfig"
MODELS = ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForVision2Seq", "AutoModelForMultimodalLM",
          "AutoModelForSeq2SeqLM", "AutoModel")  # fmt: skip
"""Keys of an auto_map that name a whole model, the one for generating text first."""


class Brought(Protocol):
    """What is to be known of a release: a Release, or a folder."""

    @property
    def name(self) -> str:
        """As it is told."""
        ...

    @property
    def root(self) -> str | None:
        """Its folder."""
        ...

    @property
    def hub(self) -> str:
        """`org/name@revision`; empty: not known."""
        ...

    @property
    def config(self) -> dict[str, Any]:
        """As it is stored."""
        ...


class Entries(NamedTuple):
    """Classes as `module.Class`, modules being files at the top of the release; empty: it names none."""

    config: str
    """Of the configuration; without one the library's is used."""
    model: str
    """Of the model."""


def entries(release: Brought) -> Entries | None:
    """What the auto_map names. None when it names no model, files that are not here, or those of another repository."""
    return None if foreign(release) else _found(release)


def foreign(release: Brought) -> str:
    """The first class of the auto_map that is of another repository (`org/name--module.Class`), as it is stated there;
    empty: there is none. Files of the same name that are here need not be that repository's."""
    own = release.hub.partition("@")[0]
    for key in (*MODELS, CONFIG):
        stated = _stated(_table(release).get(key))
        repository, two_dashes, _ = stated.rpartition("--")
        if two_dashes and repository != own:
            return printable(stated)
    return ""


def mistakable(release: Brought) -> bool:
    """Whether files are here that have the names of another repository's."""
    return bool(foreign(release)) and _found(release) is not None


def _found(release: Brought) -> Entries | None:
    if release.root is None:
        return None
    named = {key: _local(value) for key, value in _table(release).items()}
    model = next((named[key] for key in MODELS if named.get(key)), "")
    config = named.get(CONFIG, "")
    files = [_file(release.root, name) for name in (model, config) if name]
    return Entries(config, model) if model and all(path.is_file() for path in files) else None


def _table(release: Brought) -> dict[str, object]:
    table = release.config.get("auto_map")
    return {str(key): value for key, value in table.items()} if isinstance(table, Mapping) else {}


def named(release: Brought) -> str:
    """The class that the auto_map names for a whole model, as it is stated there; empty: none."""
    stated = (_table(release).get(key) for key in MODELS)
    return next((printable(str(value)) for value in stated if value), "")


def _local(value: object) -> str:
    """`module.Class` without the repository that may stand before it."""
    name = _stated(value).rpartition("--")[2]
    parts = name.split(".")
    return name if len(parts) > 1 and all(part.isidentifier() for part in parts) else ""


def _stated(value: object) -> str:
    """The class of one entry; of several the first."""
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, str) else ""


def _file(root: str, name: str) -> Path:
    return Path(root, *name.split(".")[:-1]).with_suffix(".py")
