"""`dayzero check locate`: where a run first computes something else, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dayzero.errors import UsageError

from .check import check
from .options import (
    MEMORY,
    SECONDS,
    AsJson,
    CodeMemory,
    CodeSeconds,
    Trust,
    drawn_progress,
    finish,
    required,
    show,
    trust_of,
)


@check.command("locate")
def locate(
    release: Annotated[Path, typer.Argument(help="Release folder: the reference, run here in f32.")],
    dump: Annotated[Path | None, typer.Argument(help="Golden dump of the run.")] = None,
    noise: Annotated[list[Path] | None, typer.Option(
        "--noise", help="Dump of a run of the same kind that is known to be right; repeatable.")] = None,
    causes: Annotated[bool, typer.Option("--causes/--no-causes", help="Try what explains the error.")] = True,
    layers: Annotated[str | None, typer.Option(
        "--layers", help="kinds, all, or numbers: these layers one at a time, in the memory of one.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="With --layers and no dump: what a layer runs in.")] = "bf16",
    trust: Trust = False,
    code_seconds: CodeSeconds = SECONDS,
    code_memory: CodeMemory = MEMORY,
    as_json: AsJson = False,
) -> None:
    """Where a run first computes something else than the released model: layer, module, operator, pattern, cause.

    The reference runs once with what the run had at every border of a module, so each place shows its own error alone.
    """
    from dayzero.stages.check.locate import child, locate, words
    from dayzero.stages.check.locate.layers import locate_layers

    limits = trust_of(trust, code_seconds, code_memory)
    if dump is None and layers is None:
        raise UsageError("there is no dump to locate in",
                         "record one with dayzero check record, or check layers alone with --layers kinds")
    if noise and layers is not None:
        raise UsageError("--noise is for whole runs", "leave out --noise, or --layers")
    with drawn_progress() as progress:
        if limits is not None:
            found = child.locate_confined(release, dump, limits, noise=noise or (), causes=causes,
                                          layers=layers or "", dtype=dtype, progress=progress)
        elif layers is not None:
            found = locate_layers(release, dump, layers, dtype=dtype, causes=causes, progress=progress)
        else:
            found = locate(release, required("the dump", dump), noise=noise or (), causes=causes, progress=progress)
    show(lambda: words.to_contract(found), lambda: words.overview(found), as_json)
    finish(not found.passed)
