"""The verbs that compare predictions with what was measured, and learn from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dayzero.errors import UsageError

from .app import app
from .options import AsJson, console, drawn_progress, show
from .outputs import refuse_output
from .streams import output
from .tables import calibration_table

Points = Annotated[Path, typer.Argument(help="CSV of measured points.")]
Releases = Annotated[list[Path], typer.Option("--releases", help="Folder of release folders; may be repeated.")]
Calibrated = Annotated[Path | None, typer.Option(
    "--calibration", help="File of dayzero calibrate: what your own measurements say.")]


@app.command()
def score(
    points: Points, releases: Releases,
    out: Annotated[Path, typer.Option("--out", help="CSV to write the predictions to.")],
    kind: Annotated[Literal["memory", "serve", "train"] | None, typer.Option(
        "--kind", help="What was measured; absent: what the columns are of.")] = None,
    calibration: Calibrated = None, as_json: AsJson = False,
) -> None:
    """Predict what was measured, and say how far off that is: memory and start of an engine, times of serving, or steps
    of training."""
    from dayzero.calibrate import calibration as read
    from dayzero.data.efficiency import efficiency
    from dayzero.score import kind_of
    from dayzero.score import score as predict
    from dayzero.score_report import table

    measured = kind or kind_of(points)
    if calibration and measured != "serve":
        raise UsageError(f"--calibration is of times of serving, and the points are of kind {measured}", "leave it out")
    inside = [release for folder in releases if folder.is_dir() for release in folder.iterdir()]
    refuse_output("--out", out, (points, *inside))
    known = efficiency(read(calibration)) if calibration else None
    made, found = predict(points, releases, out, measured, known)
    predicted = [one for one in made if one.fits is not None]
    assumed = sum(bool(one.reason) for one in predicted)
    told = f", {assumed} of them with something assumed" if assumed else ""
    with output():
        console(stderr=True).print(f"{len(predicted)} of {len(made)} rows predicted{told}: see column reason of {out}")
    if found or as_json:
        show(lambda: {"rows": len(made), "predicted": len(predicted), "errors": found}, lambda: table(found), as_json)


@app.command()
def calibrate(
    points: Points, releases: Releases,
    out: Annotated[Path, typer.Option("--out", help="TOML to write the factors to.")], as_json: AsJson = False,
) -> None:
    """Fit the few global factors on times of serving to your own measurements, for `score` and `plan` to take."""
    from dayzero.calibrate import calibrate as fit

    inside = [release for folder in releases if folder.is_dir() for release in folder.iterdir()]
    refuse_output("--out", out, (points, *inside))
    with drawn_progress() as progress:
        found = fit(points, releases, out, progress)
    show(lambda: {"changed": found.changed, "reason": found.reason, "calibration": found.calibration},
         lambda: calibration_table(found), as_json)
