"""Files and functions stay small."""

from __future__ import annotations

import ast
from pathlib import Path

FILE_LINES = 350
FUNCTION_LINES = 60


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
    assert not {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES}
    ordered = sorted(lengths.values())
    assert ordered[int(len(ordered) * 0.9)] <= 35


def test_files_are_short(root: Path) -> None:
    lengths = {str(path.relative_to(root)): len(path.read_text().splitlines()) for path in (root / "src").rglob("*.py")}
    assert not {name: lines for name, lines in lengths.items() if lines > FILE_LINES}

