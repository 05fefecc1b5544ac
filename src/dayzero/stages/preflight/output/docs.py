"""The pages of the documentation that are made from the rules."""

from __future__ import annotations

from dayzero.stages.preflight import rules


def rule_pages() -> dict[str, str]:
    """{file name: Markdown}: one page for each rule, and README.md that lists them."""
    lines = ["# The preflight rules", "", "Written by `make docs` from the rules themselves.", "",
             "| rule | severity | what it sees |", "|---|---|---|"]
    pages = {}
    for rule in rules():
        lines.append(f"| [{rule.name}]({rule.name}.md) | {rule.severity} | {rule.what} |")
        summary, _, rest = rule.doc.partition("\n")
        pages[f"{rule.name}.md"] = f"# {rule.name}\n\n{summary}\n\nSeverity: {rule.severity}.\n{rest}\n"
    return {"README.md": "\n".join([*lines, ""]), **pages}
