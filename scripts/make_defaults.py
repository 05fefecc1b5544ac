"""Write src/dayzero/data/class_defaults.json: what config classes of the installed transformers take for the keys that
the vocabulary reads, where a config does not state them. The classes are parsed, not imported.

    python scripts/make_defaults.py [--check]       --check: compare with the file, exit 1 where it differs
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from dayzero.data.vocabulary import vocabulary

OUT = Path(__file__).parents[1] / "src/dayzero/data/class_defaults.json"
NEVER = ("hidden_size", "layers")
"""A config without them is damaged."""


class Class:
    """One config class: its model_type, the keys that it gives a value, and the types of its inner tables."""

    def __init__(self, node: ast.ClassDef) -> None:
        self.bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        self.values: dict[str, object] = {}
        self.inner: dict[str, ast.expr] = {}
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None:
                self._take(item.target.id, item.value)
            elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                self._take(item.targets[0].id, item.value)
            elif isinstance(item, ast.FunctionDef):
                self.values.update((name, value) for name, value in _popped(item) if name not in self.values)

    def _take(self, name: str, node: ast.expr) -> None:
        if name in ("sub_configs", "sub_configs_defaults") and isinstance(node, ast.Dict):
            self.inner = {str(key.value): value for key, value in zip(node.keys, node.values, strict=True)
                          if isinstance(key, ast.Constant)}
        else:
            self.values[name] = _number(node)


def _number(node: ast.expr) -> object:
    """A literal, or a product of integers; None for anything else."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _number(node.left), _number(node.right)
        return left * right if isinstance(left, int) and isinstance(right, int) else None
    return node.value if isinstance(node, ast.Constant) else None


def _popped(function: ast.FunctionDef) -> Iterator[tuple[str, object]]:
    """kwargs.get("key", value) and kwargs.pop("key", value)."""
    for node in ast.walk(function):
        if (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop")
                and isinstance(node.func.value, ast.Name) and node.func.value.id == "kwargs" and len(node.args) == 2
                and isinstance(node.args[0], ast.Constant)):  # fmt: skip
            yield str(node.args[0].value), _number(node.args[1])


def read_classes(folder: Path) -> dict[str, Class]:
    """Every config class by name."""
    classes = {}
    for path in sorted(folder.glob("models/*/configuration_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] = Class(node)
    return classes


def values_of(name: str, classes: dict[str, Class]) -> dict[str, object]:
    """The values of a class and of those that it inherits from."""
    found: dict[str, object] = {}
    for base in reversed(classes[name].bases if name in classes else []):
        found |= values_of(base, classes) | found
    return found | (classes[name].values if name in classes else {})


def _inner_type(node: ast.expr | None, classes: dict[str, Class]) -> str | None:
    """model_type of an inner table's class: a class's own, or the one that a call states."""
    if isinstance(node, ast.Call):
        return next((str(word.value.value) for word in node.keywords
                     if word.arg == "model_type" and isinstance(word.value, ast.Constant)), None)  # fmt: skip
    kind = values_of(node.id, classes).get("model_type") if isinstance(node, ast.Name) else None
    return kind if isinstance(kind, str) else None


def table(classes: dict[str, Class]) -> tuple[dict[str, dict[str, int | bool]], dict[str, str]]:
    """(model_type -> key -> value, model_type -> model_type of its language table)."""
    words = vocabulary().config
    facts = {**words.sizes, **words.counts, **words.flags, **words.patterns}
    wanted = {spelling for fact, spellings in facts.items() if fact not in NEVER
              for spelling in spellings if "." not in spelling}
    needs = [set(words.sizes[fact]) for fact in ("vocab_size", "hidden_size", "layers")]
    defaults, inner = {}, {}
    for name, one in classes.items():
        values = values_of(name, classes)
        kind = values.get("model_type")
        if not isinstance(kind, str):
            continue
        text = next((found for key in words.text if (found := _inner_type(one.inner.get(key), classes))), None)
        if text is not None:
            inner[kind] = text
        kept = {key: value for key, value in values.items() if key in wanted and isinstance(value, int)
                and (value or isinstance(value, bool))}  # fmt: skip
        decoder = all(need & values.keys() for need in needs)
        if decoder or (text is not None and "tie_word_embeddings" in kept):
            defaults[kind] = kept if decoder else {"tie_word_embeddings": kept["tie_word_embeddings"]}
    return defaults, inner


def written(found: str, defaults: dict[str, dict[str, int | bool]], inner: dict[str, str]) -> str:
    """The file's text, one line for each model_type."""
    rows = [f'"{kind}": {json.dumps(values, sort_keys=True)}' for kind, values in sorted(defaults.items())]
    source = f"transformers {found}, models/*/configuration_*.py (scripts/make_defaults.py)"
    head = f'"source": {json.dumps(source)},\n"inner": {json.dumps(inner, sort_keys=True)},\n'
    return "{" + head + '"defaults": {\n' + ",\n".join(rows) + "\n}}\n"


def main() -> int:
    """Write or compare the file."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        print("transformers is not installed here")
        return 2
    text = written(version("transformers"), *table(read_classes(Path(spec.origin).parent)))
    if "--check" in sys.argv:
        same = OUT.read_text() == text
        print("as installed" if same else f"{OUT} is not what transformers {version('transformers')} has")
        return 0 if same else 1
    OUT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
