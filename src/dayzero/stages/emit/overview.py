"""What was emitted, for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from dayzero.schema import Bundle


def overview(bundle: Bundle) -> RenderableType:
    """Files, commands and notes. Text from releases is never read as markup."""
    lines = [Text(f"files: {', '.join(sorted(bundle.files))}")]
    for label, command in bundle.commands.items():
        lines += [Text(f"\n{label}", style="bold"), Text(command)]
    lines += [Text(f"note: {note}", style="dim") for note in bundle.notes]
    return Group(*lines)
