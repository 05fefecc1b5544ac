"""Files and functions stay small. The lists of exceptions may only shrink."""

from __future__ import annotations

import ast
from pathlib import Path

FILE_LINES = 350
FUNCTION_LINES = 60
LONG_FILES: dict[str, int] = {}
LONG_FUNCTIONS: dict[str, int] = {}


def _functions(root: Path) -> dict[str, int]:
    """`file:name` -> lines of the body, without decorators, signature and docstring."""
    lengths = {}
    for path in sorted((root / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = node.end_lineno - body[0].lineno + 1 if body and node.end_lineno else 1
                lengths[f"{path.relative_to(root)}:{node.name}:{node.lineno}"] = lines
    return lengths


def test_functions_are_short(root: Path) -> None:
    lengths = _functions(root)
    long = {name: lines for name, lines in lengths.items()
            if lines > LONG_FUNCTIONS.get(name.rpartition(":")[0], FUNCTION_LINES)}
    assert not long
    ordered = sorted(lengths.values())
    assert ordered[int(len(ordered) * 0.9)] <= 35


def test_files_are_short(root: Path) -> None:
    long = {}
    for path in sorted((root / "src").rglob("*.py")):
        name, lines = str(path.relative_to(root)), len(path.read_text().splitlines())
        if lines > LONG_FILES.get(name, FILE_LINES):
            long[name] = lines
    assert not long


def test_exceptions_are_still_needed(root: Path) -> None:
    lengths = _functions(root)
    files = {str(path.relative_to(root)): len(path.read_text().splitlines()) for path in (root / "src").rglob("*.py")}
    assert all(files.get(name, 0) > FILE_LINES for name in LONG_FILES)
    assert all(any(name == long.rpartition(":")[0] and lines > FUNCTION_LINES for long, lines in lengths.items())
               for name in LONG_FUNCTIONS)
