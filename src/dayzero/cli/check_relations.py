"""`dayzero check relations`: metamorphic tests."""

from __future__ import annotations

from typing import Annotated

import typer

from dayzero.errors import UsageError

from .check import check
from .options import AsJson, Layouts, Release, Seed, Trust, drawn_progress, finish, layouts_of, show


@check.command("relations")
def relations(
    release: Release,
    dtype: Annotated[str, typer.Option("--dtype", help="bf16, f16 or f32.")] = "f32",
    layout: Layouts = None,
    longest: Annotated[int, typer.Option("--longest", min=64, help="Longest prompt, in tokens.")] = 640,
    trust_remote_code: Trust = False, seed: Seed = 0, as_json: AsJson = False,
) -> None:
    """What has to hold without any reference: padding, batches, pieces of a prompt beyond every window, moved
    positions, permuted experts, doubled factors, drawn tokens."""
    from dayzero.stages.check.contract import to_contract
    from dayzero.stages.check.relations import relation_table
    from dayzero.stages.check.relations import relations as tried
    from dayzero.stages.read import read

    layouts = layouts_of(layout) or ()
    if len(layouts) > 1:
        raise UsageError("several layouts were given", "give one --layout")
    with drawn_progress() as progress:
        verdict = tried(read(release, progress=progress), dtype=dtype, layout=layouts[0] if layouts else None,
                        longest=longest, own=trust_remote_code, seed=seed, progress=progress)
    show(lambda: to_contract(verdict), lambda: relation_table(verdict), as_json)
    finish(not verdict.passed)
