"""Write the pages that are made from the code: docs/cli.md and docs/rules/*.md. `make docs` runs it."""

from __future__ import annotations

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
             "Exit codes: 0 it works, 1 a verdict is fail, 2 the request is wrong, 130 interrupted.", ""]
    for verb, command in get_command(app).commands.items():
        lines += [f"## dayzero {verb}", "", command.help.strip(), "", "| argument or option | meaning |", "|---|---|",
                  *_options(command), ""]
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """{path below the repository: text}"""
    from dayzero.stages.preflight.docs import rule_pages

    rules = {f"docs/rules/{name}": text for name, text in rule_pages().items()}
    return {"docs/cli.md": cli_page(), **rules}


if __name__ == "__main__":
    for name, text in pages().items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
