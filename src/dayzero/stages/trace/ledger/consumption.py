"""Which config keys the library's own code, or that of the release, reads: every read is written down while the model
is built on the meta device and while one prefill runs through it.

A read counts when the library's model code makes it, or the model's own configuration class while it derives other keys
from it. What only copies, prints or validates a whole config reads every key, and says nothing.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from dayzero.data.vocabulary import vocabulary
from dayzero.progress import SILENT, Progress
from dayzero.runtime.isolation import Limits
from dayzero.schema import Release
from dayzero.schema.consumption import Consumption
from dayzero.schema.coverage import Coverage
from dayzero.stages.trace import child
from dayzero.stages.trace.capture.step import Step

from .destinations import destinations, need_libraries

if TYPE_CHECKING:
    import torch

    from dayzero.stages.trace.construct import Built

TOKENS = 8
"""Tokens of the prefill."""
MACHINERY = ("configuration_utils.py", "generic.py")
"""Files of the library that handle every key of a config alike."""
MOVES = ("convert_rope_params_to_dict", "standardize_rope_params")
"""Functions of the library that only put keys of rotary positions in a table; the first one names them."""
TABLE = "rope_parameters"
"""That table."""
Reads = dict[tuple[type, str], dict[str, None]]
"""(class of the config, key) -> places, in the order of the first read."""


def consumption(release: Release, *, trust: Limits | None = None) -> Consumption:
    """Which keys are read. The release's own code runs as in `trace`.

    Raises NotPossible without torch, or without a class for the model.
    """
    need_libraries()
    if trust is not None and child.brings_code(release):
        return child.ledgers_confined(release, trust)[0]
    return _consumed(release, own=False)[0]


def ledgers(release: Release, *, trust: Limits | None = None, own: bool = False, progress: Progress = SILENT
            ) -> tuple[Consumption, Coverage | None]:
    """Which keys are read, and where the tensors go in the same model; without tensors None. The release's own code
    runs as in `trace`. Raises like `consumption`."""
    need_libraries()
    if trust is not None and child.brings_code(release):
        return child.ledgers_confined(release, trust, progress=progress)
    consumed, built = _consumed(release, own)
    return consumed, destinations(release, built) if release.tensors.count else None


def _consumed(release: Release, own: bool) -> tuple[Consumption, Built]:
    from dayzero.stages.trace import construct

    with construct.quiet(own=own), recording(Path(release.root) if own and release.root else None) as reads:
        built = construct.build(release, own=own)
        incomplete = _forward(release, built.model)
        found = Consumption(source=built.source.partition(";")[0], reads=_by_key(reads, built.model),
                            incomplete=incomplete)
    return found, built


@contextlib.contextmanager
def recording(root: Path | None = None) -> Iterator[Reads]:
    """Every read of a key of any config of the library while it lasts; by the library's own code and by that below
    `root`."""
    from transformers import PreTrainedConfig

    reads: Reads = defaultdict(dict)
    plain = PreTrainedConfig.__getattribute__
    roots = [Path(sys.modules["transformers"].__path__[0]).as_posix(), *([root.as_posix()] if root else [])]

    def watched(self: Any, key: str) -> Any:
        if not key.startswith("_"):
            place = _place(sys._getframe(1), roots)
            if place:
                reads[type(self), key][place] = None
        return plain(self, key)

    PreTrainedConfig.__getattribute__ = watched
    try:
        yield reads
    finally:
        PreTrainedConfig.__getattribute__ = plain


def _place(frame: FrameType, roots: list[str]) -> str:
    """`file:line` of the code that asks; empty: what it does with the key says nothing."""
    code = frame.f_code
    folder, _, name = code.co_filename.replace("\\", "/").rpartition("/")
    if not any(folder == root or folder.startswith(f"{root}/") for root in roots) or name in MACHINERY:
        return ""
    if code.co_name in MOVES or code.co_name.lstrip("_").startswith("validate"):
        return ""
    return f"{name}:{frame.f_lineno}"


def _forward(release: Release, model: torch.nn.Module) -> str:
    """Run a prefill; why it failed, or nothing."""
    from dayzero.runtime import stand_ins
    from dayzero.runtime.library import LIBRARY_ERRORS, cause
    from dayzero.stages.trace.capture.runs import Runs

    with stand_ins.fallbacks(model):
        try:
            Runs(model, release.model).run(Step("prefill", 1, TOKENS))
        except LIBRARY_ERRORS as error:
            return f"the forward pass failed: {cause(error)}"
    return ""


def _by_key(reads: Reads, model: torch.nn.Module) -> dict[str, tuple[str, ...]]:
    """The reads of the language model, also by the other names that its configuration classes have for a key."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    classes = _of_language(model.config, {kind for kind, _ in reads})
    for (kind, key), places in reads.items():
        if kind in classes:
            found[key] |= places
    for kind in classes:
        for key, place in _taken(kind):
            found[key][place] = None
        for alias, name in kind.attribute_map.items():  # type: ignore[attr-defined]
            found[alias] |= found.get(name, {})
            found[name] |= found[alias]
        for key in _words(getattr(kind, MOVES[0], None)):
            found[key] |= found.get(TABLE, {})
    return {key: tuple(places) for key, places in sorted(found.items()) if places}


def _of_language(config: Any, classes: set[type]) -> set[type]:
    """Without the configurations of towers. A class that declares no parts has those of its language model and its own;
    whatever else is configured is made in the model."""
    from transformers import PreTrainedConfig

    if config.sub_configs or config.get_text_config() is config:
        return classes - {sub for name, sub in (config.sub_configs or {}).items()
                          if name not in vocabulary().config.text}
    text = config.get_text_config()
    inner = {type(value) for value in vars(text).values() if isinstance(value, PreTrainedConfig)}
    return classes & {type(config), type(text), *inner}


def _taken(kind: type) -> Iterator[tuple[str, str]]:
    """Keys that a configuration class takes out of its arguments by name while it is made, which is no read of an
    attribute."""
    for base in kind.__mro__:
        made = base.__dict__.get("__post_init__") or base.__dict__.get("__init__")
        code: CodeType | None = getattr(made, "__code__", None)
        name = code.co_filename.replace("\\", "/").rpartition("/")[2] if code else ""
        if code and name.startswith("configuration_") and name not in MACHINERY:
            yield from ((word, f"{name}:{code.co_firstlineno}") for word in _words(made))


def _words(function: Any) -> list[str]:
    """Names among the constants of a function."""
    code: CodeType | None = getattr(function, "__code__", None)
    return [word for word in (code.co_consts if code else ()) if isinstance(word, str) and word.isidentifier()]
