"""`dayzero check gradients`: of the loss, in every layout, over a few steps."""

from __future__ import annotations

from typing import Annotated

import typer

from .check import check
from .options import AsJson, Release, Seed, Trust, drawn_progress, finish, show


@check.command("gradients")
def gradients(
    release: Release,
    layout: Annotated[list[str] | None, typer.Option(
        "--layout", help="Layout to run, like tp=2, or dp=2,fsdp: replicas that share weights; repeatable.")] = None,
    steps: Annotated[int, typer.Option("--steps", min=2, help="Steps of gradient descent.")] = 5,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Parameters for finite differences.")] = 24,
    trust_remote_code: Trust = False, seed: Seed = 0, as_json: AsJson = False,
) -> None:
    """Whether gradients are those of the loss (finite differences), numbers, the same with recomputed activations, and
    lead the same way down in every layout."""
    from dayzero.stages.check.contract import to_contract
    from dayzero.stages.check.derivatives import Way, derivatives
    from dayzero.stages.check.relations import relation_table
    from dayzero.stages.read import read

    ways = tuple(map(Way.parse, layout or ()))
    with drawn_progress() as progress:
        verdict = derivatives(read(release, progress=progress), ways=ways, steps=steps, samples=samples,
                              own=trust_remote_code, seed=seed, progress=progress)
    show(lambda: to_contract(verdict), lambda: relation_table(verdict), as_json)
    finish(not verdict.passed)
