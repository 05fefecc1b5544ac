"""What if: a target with some of its values changed, written as a target file beside the run directories. So every verb
can go on with it, the run directory of the plain target is left alone, and the file that a user wrote too."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from dayzero.errors import TargetError
from dayzero.resolve import check_target, parsed
from dayzero.schema.store import write_atomic

_LONGEST = 120
"""Characters of a name; longer ones end in a digest."""
_OF_FILES = (("engine", "name"), ("cluster", "topology"))
"""Where a target may name a file, from its own folder."""


def what_if(path: Path | None, changes: Mapping[str, Any], folder: Path) -> Path:
    """A target file in `folder` that says the same as the one at `path` (None: nothing) but for `changes`, by dotted
    key, such as `cluster.nodes`; its path. Without changes `path` itself. Raises TargetError for what is then wrong,
    LayoutError; nothing is written then."""
    if not changes and path is not None:
        return path
    content = parsed(path) if path else {}
    for key, value in changes.items():
        _put(content, key.split("."), value)
    made = folder / f"{_name(path, changes)}.toml"
    if path:
        _absolute(content, path.parent)
    data = tomli_w.dumps(content).encode()
    check_target(made, data)
    write_atomic(made, data)
    return made


def _put(content: dict[str, Any], words: list[str], value: Any) -> None:
    """Set one value, making the tables above it. Raises TargetError where there is no table."""
    for word in words[:-1]:
        content = content.setdefault(word, {})
        if not isinstance(content, dict):
            raise TargetError(f"{word} is not a table in the target", "write it as [table] with keys")
    content[words[-1]] = value


def _absolute(content: dict[str, Any], folder: Path) -> None:
    """Names of files hold wherever the target lies."""
    for table, key in _OF_FILES:
        name = content.get(table, {}).get(key) if isinstance(content.get(table), dict) else None
        if isinstance(name, str) and name.endswith(".toml"):
            content[table][key] = str((folder / name).resolve())
    operators = content.get("operators")
    if isinstance(operators, dict) and isinstance(operators.get("tables"), list):
        operators["tables"] = [str((folder / str(name)).resolve()) for name in operators["tables"]]


def _name(path: Path | None, changes: Mapping[str, Any]) -> str:
    """`mine+nodes=4+tpot_s=0.015`, for mine.toml."""
    told = [f"{key.rpartition('.')[2]}={_digest(str(value)) if isinstance(value, dict) else _text(value)}"
            for key, value in changes.items()]
    name = "+".join([path.stem, *told] if path else told)
    if len(name) <= _LONGEST:
        return name
    return f"{name[:_LONGEST - 9]}+{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _text(value: Any) -> str:
    """The value as part of a name of a file."""
    if isinstance(value, list):
        return "-".join(map(_text, value))
    if isinstance(value, dict):
        return "".join(f"{key}{inner}" for key, inner in value.items())
    text = f"{value:g}".replace("+", "") if isinstance(value, float) else str(value)
    return re.sub(r"[^\w.-]+", "-", text)
