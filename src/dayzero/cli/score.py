"""The verb that predicts what others have measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .app import app
from .options import console
from .outputs import refuse_output
from .streams import output


@app.command()
def score(
    points: Annotated[Path, typer.Argument(help="CSV of measured points.")],
    releases: Annotated[list[Path], typer.Option("--releases", help="Folder of release folders; may be repeated.")],
    out: Annotated[Path, typer.Option("--out", help="CSV to write the predictions to.")],
    kind: Annotated[Literal["memory", "serve", "train"], typer.Option("--kind", help="What was measured.")] = "memory",
) -> None:
    """Predict what was measured: memory and start of an engine, times of serving, or steps of training."""
    from dayzero.score import score as predict

    inside = [release for folder in releases if folder.is_dir() for release in folder.iterdir()]
    refuse_output("--out", out, (points, *inside))
    made = predict(points, releases, out, kind)
    predicted = sum(one.fits is not None for one in made)
    with output():
        console(stderr=True).print(f"{predicted} of {len(made)} rows predicted; the others say why: {out}")
