"""Write the pages that are made from the code: docs/cli.md, docs/target.md and docs/rules/*.md. `make docs` runs it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def _options(command: Any) -> list[str]:
    rows = []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        name = ", ".join(f"`{word}`" for word in parameter.opts) if parameter.param_type_name == "option" \
            else f"`{parameter.name.upper()}`"
        rows.append(f"| {name} | {(getattr(parameter, 'help', '') or '').strip()} |")
    return rows


def cli_page() -> str:
    """The command line, one section for each verb."""
    from typer.main import get_command

    from dayzero.cli import app

    lines = ["# The command line", "",
             "Written by `make docs` from the program; `dayzero VERB --help` says the same.", "",
             "Exit codes: 0 it works, 1 a verdict is fail or a stage failed, 2 the request is wrong or the system",
             "refuses, 130 interrupted, 141 the reader of the output has gone, 143 ended by SIGTERM.", ""]
    for verb, command in _commands(get_command(app)):
        lines += [f"## dayzero {verb}", "", command.help.strip(), ""]
        if rows := _options(command):
            lines += ["| argument or option | meaning |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """(words, command) of all commands, those of groups behind the group."""
    for name, command in group.commands.items():
        yield f"{before}{name}", command
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")


def _fields(node: ast.ClassDef) -> list[str]:
    """A table row for each field of a struct: name, type, the docstring below it."""
    rows = []
    for field, after in zip(node.body, node.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr)):
            continue
        default = ast.unparse(field.value) if field.value else "None"
        kind = ast.unparse(field.annotation).replace(" | None", "").replace("|", "or")
        kind += "" if default == "None" else f", default `{default}`"
        meaning = " ".join(str(ast.literal_eval(after.value)).split())
        rows.append(f"| `{ast.unparse(field.target)}` | {kind} | {meaning} |")
    return rows


def target_page() -> str:
    """target.toml, one section for each table, from the structs that read it."""
    body = [node for name in ("cluster", "target")
            for node in ast.parse((ROOT / f"src/dayzero/schema/{name}.py").read_text()).body]
    lines = ["# target.toml", "",
             "Written by `make docs` from the program. Only `[cluster]` is needed; an unknown key is an error.", "",
             "Examples: [examples/targets](../examples/targets). Rates are a second, sizes in bytes, times in seconds.",
             ""]
    for node in body:
        if isinstance(node, ast.ClassDef) and any(getattr(base, "id", "") == "Request" for base in node.bases):
            lines += [f"## {node.name.removesuffix('Request')}", "", ast.get_docstring(node) or "", "",
                      "| key | type | meaning |", "|---|---|---|", *_fields(node), ""]
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """{path below the repository: text}"""
    from dayzero.stages.preflight.output.docs import rule_pages

    rules = {f"docs/rules/{name}": text for name, text in rule_pages().items()}
    return {"docs/cli.md": cli_page(), "docs/target.md": target_page(), **rules}


if __name__ == "__main__":
    for name, text in pages().items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
