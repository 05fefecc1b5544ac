"""The verb that compares a release's files with what was published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import app
from .options import AsJson, Revision, drawn_progress, finish, show


@app.command()
def verify(
    release: Annotated[str, typer.Argument(help="Release folder, or a hub id (org/name) that was downloaded before.")],
    manifest: Annotated[Path | None, typer.Option("--manifest", help="A manifest, or what sha256sum wrote.")] = None,
    hub: Annotated[str | None, typer.Option("--hub", help="Compare a folder with this hub id (org/name).")] = None,
    revision: Revision = None,
    again: Annotated[bool, typer.Option("--again", help="Read files too whose digest is remembered.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the SHA-256 of every file with the published one; goes on where it was interrupted."""
    from dayzero.stages.read import verify_release

    from .tables import verification_table

    with drawn_progress() as progress:
        found = verify_release(release, manifest=manifest, hub=hub, revision=revision, again=again, progress=progress)
    show(lambda: {"verdict": "pass" if found.passed else "fail", "origin": found.origin, "files": found.files,
                  "bytes_read": found.bytes_read, "seconds": found.seconds},
         lambda: verification_table(found), as_json)
    finish(not found.passed)
