"""`dayzero check record`: a golden dump of a release that is run here, or of a server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dayzero.errors import UsageError

from .check import check
from .check_inside import Name, Options, Python, engine_of
from .options import (
    AsJson,
    PromptFile,
    Prompts,
    Revision,
    Seed,
    Trust,
    bytes_of,
    drawn_progress,
    layouts_of,
    prompts_of,
    show,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dayzero.progress import Progress
    from dayzero.runtime.endpoint import Endpoint
    from dayzero.runtime.tokens import Tokens
    from dayzero.stages.check.inside import Engine
    from dayzero.stages.check.recording import Recorded

_NUMBERS = "numbers and ranges, like 0,3-5"


@check.command("record")
def record(
    release: Annotated[str, typer.Argument(help="Release folder or hub id, or a server's address: http://host/v1.")],
    out: Annotated[Path, typer.Argument(help="Folder of the dump; must not exist or be empty.")],
    prompt: Prompts = None, prompts: PromptFile = None,
    tokens: Annotated[Path | None, typer.Option(
        "--tokens", help="File of token ids, JSON like [[1, 2], [3]]; or a golden dump with such tokens.")] = None,
    layout: Annotated[str | None, typer.Option("--layout", help="Layout to run, like tp=2,pp=2.")] = None,
    plan: Annotated[Path | None, typer.Option(
        "--plan", help="Run as this plan says: a file of dayzero plan --json, or a run directory.")] = None,
    host_memory: Annotated[str | None, typer.Option(
        "--host-memory", help="Most memory of a rank, like 1.5GB; the rest stays in the files.")] = None,
    device_memory: Annotated[str | None, typer.Option(
        "--device-memory", help="Most weights on a device, likewise.")] = None,
    paged: Annotated[int, typer.Option(
        "--paged", min=0, metavar="TOKENS", help="Through the serving engine and its cache in blocks, with steps of at "
        "most so many tokens: longer prompts come in chunks, short ones together.")] = 0,
    dtype: Annotated[str | None, typer.Option("--dtype", help="bf16, f16 or f32; default: the release's.")] = None,
    mode: Annotated[Literal["whole", "sampled", "statistics"], typer.Option(
        "--mode", help="Which values are kept; statistics are always.")] = "whole",
    sample: Annotated[str, typer.Option("--sample", help="Shares of rows and columns.")] = "0.25,0.25",
    modules: Annotated[list[str] | None, typer.Option(
        "--modules", help="all, leaves, or patterns of module names or kinds; repeatable.")] = None,
    layers: Annotated[str | None, typer.Option("--layers", help=f"Only these layers: {_NUMBERS}.")] = None,
    decode: Annotated[int, typer.Option("--decode", min=0, help="Last tokens, given one by one with a cache.")] = 0,
    gradients: Annotated[Literal["none", "parameters", "outputs"], typer.Option(
        "--gradients", help="Of the loss on the tokens; outputs: of what modules give too.")] = "none",
    noise: Annotated[int, typer.Option("--noise", min=0, help="Perturbed runs to record besides, for tolerances.")] = 0,
    noise_dtype: Annotated[str | None, typer.Option(
        "--noise-dtype", help="Precision whose roundoff is put in; default: the release's.")] = None,
    backend: Annotated[str, typer.Option("--backend", help="Devices to run on: see dayzero backend list.")] = "cpu",
    library: Annotated[bool, typer.Option("--library", help="Let transformers load and run it, one process.")] = False,
    trust_remote_code: Trust = False, revision: Revision = None, seed: Seed = 0,
    engine: Name = None, python: Python = None, engine_options: Options = None,
    top: Annotated[int, typer.Option(
        "--top", min=1, max=100, help="Of a server or an engine: likeliest tokens to keep.")] = 5,
    model: Annotated[str | None, typer.Option("--model", help="Of a server with several: which model.")] = None,
    tokenizer: Annotated[str | None, typer.Option("--tokenizer", help="Of a server: release that encodes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Record what a model computes for given tokens, module by module, to be compared with (docs/check.md)."""
    if tokens is not None and (prompt or prompts):
        raise UsageError("--tokens says all of what is recorded", "leave out --prompt and --prompts")
    texts, inside = prompts_of(prompt, prompts), engine_of(engine, python, engine_options, top)
    with drawn_progress() as progress:
        if release.startswith(("http://", "https://")):
            if inside is not None:
                raise UsageError("--engine starts an engine, and a server has one", "give the release, or leave it out")
            made = _server(release, out, texts, tokens, top, model, tokenizer, progress)
        else:
            made = _release(release, out, texts, tokens, revision, inside, progress, {
                **_placed(plan, layout, backend, host_memory, device_memory), "paged": paged, "dtype": dtype,
                "mode": mode, "layers": _numbers(layers),
                "modules": tuple(modules) if modules else None, "decode": decode, "noise": noise, "plain": library,
                "gradients": None if gradients == "none" else gradients, "noise_dtype": noise_dtype,
                "own": trust_remote_code, "backend": backend, "seed": seed, **_shares(sample)})
    show(lambda: made, lambda: _told(made), as_json)


def _release(name: str, out: Path, texts: tuple[str, ...] | None, file: Path | None, revision: str | None,
             inside: Engine | None, progress: Progress, options: dict[str, Any]) -> Recorded:
    """`options`: of Asked; None leaves the default."""
    from dayzero.runtime.tokens import Tokens
    from dayzero.stages.check.recording import Asked, read_tokens, record_release
    from dayzero.stages.read import read
    from dayzero.stages.run import PROMPTS

    asked = Asked(**{key: value for key, value in options.items() if value is not None})
    found = read(name, revision=revision, progress=progress)
    if file is not None:
        ids = read_tokens(file)
    elif found.root is None:
        ids = ((0,),)  # refused with the release
    else:
        progress.update("reading the tokenizer")
        with Tokens(found.root) as tokens:
            ids = tokens.encode(texts or PROMPTS)
    if inside is None:
        return record_release(found, ids, out, asked, progress=progress)
    from dayzero.stages.check.inside import record_inside

    return record_inside(found, ids, out, asked, inside, progress=progress)


def _placed(plan: Path | None, layout: str | None, backend: str, host_memory: str | None, device_memory: str | None
            ) -> dict[str, Any]:
    """Layout, stages and budgets. Raises UsageError."""
    from dayzero.plan_file import chosen_plan, read_plan
    from dayzero.runtime.seat import HOST
    from dayzero.schema import Budget

    layouts = layouts_of([layout] if layout is not None else None)
    planned = chosen_plan(read_plan(plan), layouts or ()) if plan is not None else None
    asked = Budget(host=bytes_of("--host-memory", host_memory) or None,
                   device=bytes_of("--device-memory", device_memory) or None)
    budgets = (asked,) if asked.limited else planned.budgets(device=backend != HOST) if planned else ()
    return {"layout": planned.layout if planned else layouts[0] if layouts else None, "budgets": budgets,
            "stages": planned.stages if planned and planned.layout.pp > 1 else ()}


def _server(url: str, out: Path, texts: tuple[str, ...] | None, file: Path | None, top: int, model: str | None,
            tokenizer: str | None, progress: Progress) -> Recorded:
    from contextlib import ExitStack

    from dayzero.runtime.endpoint import Endpoint
    from dayzero.runtime.tokens import Tokens
    from dayzero.stages.check.recording import read_tokens, record_endpoint
    from dayzero.stages.run import PROMPTS

    with ExitStack() as stack:
        tokens = stack.enter_context(Tokens(tokenizer)) if tokenizer is not None else None
        endpoint = Endpoint(url, model=model, text=tokens.decode if tokens else None, progress=progress)
        ids = read_tokens(file) if file is not None else _encoded(endpoint, texts or PROMPTS, tokens)
        return record_endpoint(endpoint, ids, out, top=top, progress=progress)


def _encoded(endpoint: Endpoint, texts: tuple[str, ...], tokens: Tokens | None) -> tuple[tuple[int, ...], ...]:
    """By the release that is named, with its chat template, or else by the server."""
    if tokens is not None:
        return tokens.encode(texts)
    ids = [endpoint.tokenize(text) for text in texts]
    if any(each is None for each in ids):
        raise UsageError("the server does not tell which tokens a text is", "give --tokens, or --tokenizer RELEASE")
    return tuple(each for each in ids if each is not None)


def _shares(text: str) -> dict[str, float]:
    """`0.5,0.25` -> rows and columns."""
    try:
        rows, columns = map(float, text.split(","))
    except ValueError:
        raise UsageError(f"--sample {text!r} is no pair of shares", "write it like 0.25,0.25") from None
    if not (0 < rows <= 1 and 0 < columns <= 1):
        raise UsageError(f"--sample {text!r}: shares are above 0 and up to 1", "write it like 0.25,0.25")
    return {"rows": rows, "columns": columns}


def _numbers(text: str | None) -> tuple[int, ...] | None:
    """`0,3-5` -> 0, 3, 4, 5."""
    if text is None:
        return None
    made: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"--layers {text!r}: {part!r} is no layer", f"write {_NUMBERS}")
        made |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(made))


def _told(made: Recorded) -> RenderableType:
    from rich.markup import escape

    from dayzero.units import format_bytes

    lines = [f"{made.folder}: {made.entries:,} tensors of {made.sequences} sequences, {format_bytes(made.nbytes)}, "
             f"by {made.ranks} rank{'s' if made.ranks > 1 else ''}"]
    lines += [f"noise: {folder}" for folder in made.noise]
    return escape("\n".join([*lines, *(f"note: {note}" for note in made.notes)]))
