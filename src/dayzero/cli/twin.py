"""The verb that writes a miniature of a release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .app import app
from .options import AsJson, Release, Revision, Seed, drawn_progress, show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dayzero.schema.twin import Twin


@app.command()
def twin(
    release: Release,
    out: Annotated[Path, typer.Argument(help="Folder to write to; must not exist or be empty.")],
    layers: Annotated[int | None, typer.Option("--layers", min=1, help="Decoder layers; default: every kind.")] = None,
    scale: Annotated[float | None, typer.Option("--scale", help="Times narrower; default: about 256 wide.")] = None,
    seed: Seed = 0,
    revision: Revision = None,
    as_json: AsJson = False,
) -> None:
    """Write a miniature release: same architecture, names, files and quantised formats, small sizes, random weights."""
    from dayzero.stages.read import read
    from dayzero.stages.twin import twin as write_twin

    with drawn_progress() as progress:
        original = read(release, revision=revision, metadata_only=True, progress=progress)
        made = write_twin(original, out, layers=layers, scale=scale, seed=seed, progress=progress)
    show(lambda: made, lambda: _table(made), as_json)


def _table(made: Twin) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from dayzero.units import format_bytes, format_count

    table = Table(box=None, pad_edge=False)
    table.add_column("number")
    table.add_column("original", justify="right")
    table.add_column("twin", justify="right")
    table.add_column("config keys")
    for number in made.numbers:
        new = str(number.twin) if number.original != number.twin else "same"
        table.add_row(number.fact, str(number.original), new, ", ".join(number.keys))
    head = (f"{made.tensors} tensors in {made.files} files, {format_bytes(made.tensor_bytes)}, "
            f"{format_count(made.parameters)} parameters; names from {made.names}")
    layers = f"layers of the original: {', '.join(map(str, made.layers))}"
    return Group(Text(made.folder), Text(head), Text(layers), table, *(Text(f"note: {note}") for note in made.notes))
