"""`dayzero trace`: the operators of a release, seen from the side that is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Group

from dayzero.errors import UsageError, did_you_mean

from .app import app
from .options import (
    MEMORY,
    SECONDS,
    TARGET_HELP,
    AsJson,
    CodeMemory,
    CodeSeconds,
    Force,
    Release,
    Revision,
    Trust,
    drawn_progress,
    finish,
    names_of,
    show,
    trust_of,
)

if TYPE_CHECKING:
    from dayzero.progress import Progress
    from dayzero.runtime.isolation import Limits
    from dayzero.schema import Device, OpGraph
    from dayzero.stages.trace import Support

_ALL, _HOST = "all", "cpu"
By = Literal["flops", "bytes", "time"]
Environment = Literal["present", "declared"]


@app.command()
def trace(
    release: Release,
    batch: Annotated[int, typer.Option(min=1, help="Sequences.")] = 1,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens of each sequence in prefill.")] = 64,
    context: Annotated[int, typer.Option(min=1, help="Tokens in the cache of the decode step.")] = 64,
    towers: Annotated[bool, typer.Option("--towers", help="Also run towers for images and sound.")] = False,
    view: Annotated[list[str] | None, typer.Option(
        "--view", help="summary, operators, kinds, tree, control-flow, coverage, breaks or all; repeatable.")] = None,
    by: Annotated[By, typer.Option("--by", help="What ranks the operators; time needs --target.")] = "flops",
    top: Annotated[int, typer.Option(min=1, help="Rows of each table.")] = 20,
    depth: Annotated[int, typer.Option(min=1, help="Levels of the tree.")] = 4,
    target: Annotated[Path | None, typer.Option("--target", "-t", help=f"{TARGET_HELP} For bounds.")] = None,
    backend: Annotated[list[str] | None, typer.Option(
        "--backend", help="Which operators this backend (cpu, cuda ...) implements; repeatable.")] = None,
    export: Annotated[bool, typer.Option("--export", help="Really run torch.export on a few layers.")] = False,
    diff: Annotated[str | None, typer.Option(
        "--diff", help="Release or saved trace JSON: what is new against it.")] = None,
    revision: Revision = None, trust_remote_code: Trust = False, code_seconds: CodeSeconds = SECONDS,
    code_memory: CodeMemory = MEMORY, env: Annotated[Environment, typer.Option(
        "--env", help="The transformers that traces: the present one, or the version that the release declares, "
                      "installed in an environment of its own.")] = "present",
    force: Force = False, as_json: AsJson = False,
) -> None:
    """Every operator that the model's code runs, with shapes and cost, without weights."""
    views = _views(view, backend, export)
    if by == "time" and target is None:
        raise UsageError("--by time needs a device", "add --target with a target.toml")
    options: dict[str, Any] = {"batch": batch, "tokens": tokens, "context": context, "towers": towers,
                               "trust": trust_of(trust_remote_code, code_seconds, code_memory), "env": env}
    with drawn_progress() as progress:
        device = _device(target, progress)
        saved = _saved(diff, progress) if diff else None
        graph = _graph(release, progress, revision=revision, again=force, **options)
        other = saved or (_graph(diff, progress, again=force, **options) if diff else None)
        shown = () if other is not None else views
        support = _support(graph, backend, progress) if "coverage" in shown else None
        breaks = (_breaks(graph, release, revision, export, options["trust"], progress) if "breaks" in shown
                  else None)
    if other is not None:
        _show_diff(other, graph, top, as_json)
        return
    from dayzero.stages.trace import breaks_tables, overview, support_tables, to_contract

    made = {"coverage": support, **(breaks or {})}
    show(lambda: {**to_contract(graph, by=by, device=device, top=top),
                  **{name: value for name, value in made.items() if value is not None}},
         lambda: Group(overview(graph, top, views=views, by=by, device=device, depth=depth),
                       *([support_tables(support, top)] if support is not None else []),
                       *([breaks_tables(breaks["breaks"], breaks["export"], top)] if breaks else [])), as_json)
    finish(not graph.phases)


def _trusted(trust: bool) -> dict[str, Any]:
    """Limits under which the release's own code may run; nothing: it may not."""
    from dayzero.runtime.isolation import Limits

    return {"trust": Limits()} if trust else {}


def _graph(source: str, progress: Progress, **options: Any) -> OpGraph:
    from dayzero.traced import saved_or_traced

    return saved_or_traced(source, progress=progress, **options)


def _saved(source: str, progress: Progress) -> OpGraph | None:
    """The saved trace to compare with; None: it is a release, which can be read."""
    from dayzero.traced import other_of

    return other_of(source, progress=progress)


def _show_diff(before: OpGraph, after: OpGraph, top: int, as_json: bool) -> None:
    from dayzero.stages.trace import compare, diff_tables

    found = compare(before, after)
    show(lambda: found, lambda: diff_tables(found, top), as_json)


def _breaks(graph: OpGraph, source: str, revision: str | None, export: bool, trust: Limits | None,
            progress: Progress) -> dict[str, Any]:
    """What graph capture would stumble over; with `export` what it does stumble over. Of a saved trace there is no
    source to search, and nothing to export: raises UsageError."""
    from dayzero.stages.trace import foreseen, try_export
    from dayzero.traced import is_saved, read_for_trace

    release = None if is_saved(source) else read_for_trace(source, revision=revision, progress=progress)
    if release is None and export:
        raise UsageError("--export needs a release, and this is a saved trace", "give the release itself")
    return {"breaks": foreseen(graph, release),
            "export": try_export(graph, release, trust, progress) if release is not None and export else None}


def _support(graph: OpGraph, backends: list[str] | None, progress: Progress) -> tuple[Support, ...]:
    """Coverage by the backends, or by this host's."""
    from dayzero.stages.trace import operator_support

    return operator_support(graph, names_of(backends) or (_HOST,), progress=progress)


def _views(given: list[str] | None, backends: list[str] | None, export: bool) -> tuple[str, ...]:
    """The views that are asked for, by name or by an option that only one of them has. Raises UsageError."""
    from dayzero.stages.trace import VIEWS

    asked = list(names_of(given) or ())
    for name in asked:
        if name not in (*VIEWS, _ALL):
            raise UsageError(f"no view is named {name!r}",
                             f"{did_you_mean(name, VIEWS)}views: {', '.join(VIEWS)}, {_ALL}")
    if _ALL in asked:
        return VIEWS
    asked += ["coverage"] if backends else []
    asked += ["breaks"] if export else []
    return tuple(asked) or ("summary",)


def _device(target: Path | None, progress: Progress) -> Device | None:
    """The device of a target. Raises TargetError."""
    if target is None:
        return None
    from dayzero.backends import measure_host
    from dayzero.resolve import resolve_target

    return resolve_target(target, measured=lambda ranks: measure_host(ranks, progress)).cluster.device
