"""Which config keys the code of a model reads, where, and the defaults of its configuration classes: from its syntax,
without running it."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dayzero.data.keys import keys, language_tables
from dayzero.schema import Release
from dayzero.stages.preflight.code.shipped import Shipped, Source

CONFIGS = ("config", "cfg", "configuration", "hf_config", "model_config")
"""Names, and ends of names, that hold a config."""
SIZES = {"hidden_size", "num_hidden_layers"}
"""Keys of which the code of any model reads one."""


@dataclass(frozen=True)
class Use:
    """One place where a key is read."""

    key: str
    """The key."""
    file: str
    """File of the release."""
    line: int
    """Line in it."""
    module: str
    """Class that reads it; empty outside of classes."""
    role: str
    """Part of the model that the class is; empty where its name does not say."""


def model_code(release: Release) -> list[Source]:
    """The model's code: what the release ships, or else what the installed transformers has for its model_type."""
    shipped = list(Shipped(release).sources.values())
    if SIZES & {use.key for use in uses(shipped)}:
        return shipped
    return _native(release)


def _native(release: Release) -> list[Source]:
    """Code of the installed transformers, as text; empty where it is not installed or does not know the model."""
    package = find_spec("transformers")
    types = [str(table.get("model_type")) for _, table in language_tables(release.config)]
    for root in (package.submodule_search_locations or []) if package else []:
        for name in (name for type_ in types for name in (type_, type_.removesuffix("_text"))):
            files = [Path(root, "models", name, f"{kind}_{name}.py") for kind in ("modeling", "configuration")]
            if name.isidentifier() and all(map(os.path.isfile, files)):  # False for a name that no file can have
                return [Source(file=Path("transformers", file.relative_to(root)).as_posix(),
                               tree=ast.parse(file.read_bytes(), str(file)), problem="") for file in files]
    return []


def uses(sources: Iterable[Source]) -> list[Use]:
    """Every place in code that reads a config key: `config.key`, `getattr(config, "key", ...)`,
    `config["key"]` and `config.get("key")`. Configuration classes, which only hold keys, are left out."""
    found = []
    for source in sources:
        for node in source.tree.body if source.tree else ():
            module = node.name if isinstance(node, ast.ClassDef) else ""
            if not _is_config_class(node):
                found += [Use(key, source.file, line, module, role_of(module)) for key, line in _keys(node)]
    return found


def class_defaults(sources: Iterable[Source]) -> dict[str, Any]:
    """Default of each parameter and field of the configuration classes of the language model."""
    towers = ("vision", "audio", "visual", "speech")
    found: dict[str, Any] = {}
    for source in sources:
        for node in source.tree.body if source.tree else ():
            if isinstance(node, ast.ClassDef) and _is_config_class(node) \
                    and not any(word in node.name.lower() for word in towers):
                for key, value in _defaults(node):
                    found.setdefault(key, value)
    return found


def role_of(module: str) -> str:
    """Part of the model that a class is, by its name."""
    name = module.lower()
    return next((role for role, words in keys().modules.items() if any(word in name for word in words)), "")


def _is_config_class(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and node.name.endswith("Config")


def _keys(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and _holds_config(node.value) \
                and node.attr != "get":
            yield node.attr, node.lineno
        elif isinstance(node, ast.Subscript) and _holds_config(node.value) and _text(node.slice):
            yield _text(node.slice), node.lineno
        elif isinstance(node, ast.Call):
            yield from _asked(node)


def _asked(call: ast.Call) -> Iterator[tuple[str, int]]:
    """`getattr(config, "key")`, `hasattr(...)` and `config.get("key")`."""
    args = call.args
    if isinstance(call.func, ast.Name) and call.func.id in ("getattr", "hasattr") and len(args) > 1 \
            and _holds_config(args[0]) and _text(args[1]):
        yield _text(args[1]), call.lineno
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "get" and args and _text(args[0]) \
            and (_holds_config(call.func.value) or _inside_config(call.func.value)):
        yield _text(args[0]), call.lineno


def _holds_config(node: ast.expr) -> bool:
    """`config`, `self.config`, `config.text_config`, `self.text_config` ..."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in CONFIGS or name.endswith("_config")


def _inside_config(node: ast.expr) -> bool:
    """`config.rope_scaling` and the like: a table of a config."""
    return isinstance(node, ast.Attribute) and _holds_config(node.value)


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _defaults(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None:
            yield from _constant(item.target.id, item.value)
        elif isinstance(item, ast.FunctionDef) and item.name == "__init__":
            positional = item.args.args[len(item.args.args) - len(item.args.defaults):]
            pairs = [*zip(positional, item.args.defaults, strict=True),
                     *zip(item.args.kwonlyargs, item.args.kw_defaults, strict=True)]
            for argument, value in pairs:
                if value is not None:
                    yield from _constant(argument.arg, value)


def _constant(key: str, node: ast.expr) -> Iterator[tuple[str, Any]]:
    try:
        yield key, ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return  # an expression has no value without being run
