"""Documentation that cannot drift: pages made from the code are up to date, every field and verb is documented."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest


def _make_docs(root: Path):
    spec = importlib.util.spec_from_file_location("make_docs", root / "scripts" / "make_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date(root: Path) -> None:
    stale = [name for name, text in _make_docs(root).pages().items()
             if not (root / name).exists() or (root / name).read_text() != text]
    assert not stale, "run `make docs`"


def test_every_verb_is_documented(root: Path) -> None:
    from typer.main import get_command

    from dayzero.cli import app

    page, readme = (root / "docs" / "cli.md").read_text(), (root / "README.md").read_text()
    for verb, command in get_command(app).commands.items():
        assert command.help, f"{verb} has no help"
        assert f"## dayzero {verb}\n" in page
        assert f"dayzero {verb}" in readme, f"README does not show {verb}"


@pytest.mark.parametrize("file", ["release", "graph", "hardware", "plan", "workload", "target", "record", "verdict",
                                  "bundle", "finding", "results", "store", "golden", "comparison"])
def test_every_field_has_a_docstring(root: Path, file: str) -> None:
    tree = ast.parse((root / "src" / "dayzero" / "schema" / f"{file}.py").read_text())
    bare = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and {getattr(base, "id", "") for base in node.bases} & {"Noun", "Request"}:
            assert ast.get_docstring(node), node.name
            for field, after in zip(node.body, [*node.body[1:], None], strict=True):
                told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                if isinstance(field, ast.AnnAssign) and not told:
                    bare.append(f"{node.name}.{field.target.id}")
    assert not bare


def test_links_in_the_documents_lead_somewhere(root: Path) -> None:
    broken = [
        f"{page.relative_to(root)} -> {link}"
        for page in [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert not broken
