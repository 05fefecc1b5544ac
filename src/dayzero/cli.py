"""The command line: one verb for each stage, and a few for files and facts. Parse, call, print, exit code; no logic.

Exit codes: 0 it works, 1 a verdict is fail, 2 the request is wrong (two lines on standard error), 130 interrupted.
With --json one object goes to standard output; everything else goes to standard error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from dayzero import __version__
from dayzero.errors import DayzeroError, NotPossible, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from dayzero.job import Job, Options

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Read a model release, check it, plan it, run it, prove it, and say how to launch it: on the day it appears.")

Release = Annotated[str, typer.Argument(help="Release folder, card (.toml) or hub id (org/name).")]
Target = Annotated[Path, typer.Option("--target", "-t", help="target.toml: cluster, engine, workload.")]
Runs = Annotated[Path, typer.Option("--runs", help="Folder of the run directories.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Force = Annotated[bool, typer.Option("--force", help="Make the stages again, even if nothing changed.")]
Prompts = Annotated[list[str] | None, typer.Option("--prompt", help="Prompt to generate from; may be repeated.")]
PromptFile = Annotated[Path | None, typer.Option("--prompts", help="File with one prompt a line.")]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Tokens to generate for each prompt.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
Reference = Annotated[str | None, typer.Option("--reference", help="Release to compare with; default: itself.")]
MetadataOnly = Annotated[bool, typer.Option("--metadata-only", help="From a hub: headers, no weights.")]
Revision = Annotated[str | None, typer.Option("--revision", help="Revision of a hub id.")]
Layouts = Annotated[list[str] | None, typer.Option("--layout", help="Layout to run, like tp=2,pp=1; repeatable.")]


_ONE_A_LINE = "give a text file with one prompt a line"


def _options(**chosen: Any) -> Options:
    from dayzero.job import Options

    return Options(**{name: value for name, value in chosen.items() if value is not None})


def _prompts(given: list[str] | None, file: Path | None) -> tuple[str, ...] | None:
    if file is None:
        return tuple(given) if given else None
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the prompts in {file}: {error}", _ONE_A_LINE) from None
    prompts = (*(given or ()), *(line for line in lines if line.strip()))
    if not prompts:
        raise UsageError(f"{file} has no prompt", _ONE_A_LINE)
    return prompts


def _layouts(given: list[str] | None) -> tuple[Any, ...] | None:
    from dayzero.schema import Layout

    return tuple(Layout.parse(text) for text in given) if given else None


def _advance(release: str, target: Path, runs: Path, options: Options, **stages: Any) -> Job:
    from dayzero.pipeline import advance, open_job

    with _drawn() as progress:
        return advance(open_job(release, target, runs=runs, options=options, progress=progress), **stages)


def _drawn() -> Any:
    """Live progress on a terminal, one line a stage elsewhere."""
    from dayzero.progress_rich import drawn

    return drawn(_console(stderr=True))


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def _print_json(value: Any) -> None:
    from dayzero.schema import to_json

    sys.stdout.write(to_json(value).decode() + "\n")


def _show(value: Any, renderable: Any, as_json: bool) -> None:
    """`value()` as JSON, or `renderable()` for people."""
    if as_json:
        _print_json(value())
    else:
        _console().print(renderable())


def _finish(failed: bool) -> None:
    if failed:
        raise typer.Exit(1)


@app.command()
def adapt(
    release: Release, target: Target, runs: Runs = Path("runs"),
    from_stage: Annotated[str | None, typer.Option("--from", help="Make this stage and those after it again.")] = None,
    only: Annotated[str | None, typer.Option("--only", help="Make only this stage again.")] = None,
    force: Force = False, layout: Layouts = None, prompt: Prompts = None, prompts: PromptFile = None,
    max_new_tokens: NewTokens = 32, seed: Seed = 0, reference: Reference = None,
    metadata_only: MetadataOnly = False, revision: Revision = None,
    as_json: AsJson = False,
) -> None:
    """All stages: read, preflight, trace, plan, run, check, emit, report."""
    from dayzero.pipeline import failed, report_path, results
    from dayzero.stages.report import summary

    options = _options(layouts=_layouts(layout), prompts=_prompts(prompt, prompts), max_new_tokens=max_new_tokens,
                       seed=seed, reference=reference, metadata_only=metadata_only, revision=revision)
    job = _advance(release, target, runs, options, from_stage=from_stage, only=only, force=force)
    outcome, why = results(job), failed(results(job))
    _show(lambda: {"run": str(job.folder.path), "adapted": not why, "why_not": why,
                   "stages": outcome.stages, "report": str(report_path(job))},
          lambda: summary(outcome), as_json)
    _console(stderr=True).print(f"report: {report_path(job)}", soft_wrap=True)
    _finish(bool(why))


@app.command()
def read(release: Release, metadata_only: MetadataOnly = False, revision: Revision = None,
         as_json: AsJson = False) -> None:
    """What the release's files say: tensors, layers, parameters, quantisation."""
    from dayzero.stages.read import read as read_release
    from dayzero.stages.report import release_card

    with _drawn() as progress:
        found = read_release(release, revision=revision, metadata_only=metadata_only, progress=progress)
    _show(lambda: {"name": found.name, "origin": found.origin, "has_weights": found.has_weights,
                   "tensors": found.tensors.count, "model": found.model},
          lambda: release_card(found), as_json)


@app.command()
def preflight(release: Release, target: Target, runs: Runs = Path("runs"), force: Force = False,
              as_json: AsJson = False) -> None:
    """Everything that can be seen to go wrong before anything is launched."""
    from dayzero.schema import Findings
    from dayzero.stages.preflight import findings_table

    job = _advance(release, target, runs, _options(), upto="preflight", force=force)
    found = job.need("preflight", Findings)
    _show(lambda: {"verdict": found.verdict, "findings": found.findings, "facts": found.facts},
          lambda: findings_table(found), as_json)
    _finish(found.verdict == "fail")


@app.command()
def trace(
    release: Release,
    batch: Annotated[int, typer.Option(min=1, help="Sequences.")] = 1,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens of each sequence in prefill.")] = 64,
    context: Annotated[int, typer.Option(min=1, help="Tokens in the cache of the decode step.")] = 64,
    top: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Every operator that the model's code runs, with shapes and cost, without weights."""
    from dayzero.stages.read import read as read_release
    from dayzero.stages.trace import overview, to_contract
    from dayzero.stages.trace import trace as trace_release

    with _drawn() as progress:
        found = read_release(release, progress=progress)
        graph = trace_release(found, batch=batch, tokens=tokens, context=context, progress=progress)
    _show(lambda: to_contract(graph), lambda: overview(graph, top), as_json)


@app.command()
def plan(
    release: Release, target: Target, runs: Runs = Path("runs"),
    top: Annotated[int, typer.Option(min=1, help="Layouts to keep.")] = 20, force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Which layouts are legal, which fit, and how fast each should be."""
    from dayzero.schema import Plan
    from dayzero.stages.plan import overview, to_contract

    job = _advance(release, target, runs, _options(top=top), upto="plan", force=force)
    found = job.need("plan", Plan)
    _show(lambda: to_contract(found), lambda: overview(found), as_json)
    _finish(found.best is None)


@app.command()
def run(
    release: Release, target: Annotated[Path | None, typer.Option("--target", "-t", help="target.toml.")] = None,
    layout: Layouts = None, prompt: Prompts = None, prompts: PromptFile = None, max_new_tokens: NewTokens = 32,
    seed: Seed = 0, runs: Runs = Path("runs"), force: Force = False, as_json: AsJson = False,
) -> None:
    """Run the release on this machine, sharded by the plan or by --layout."""
    from dayzero.resolve import local_target
    from dayzero.schema import RunRecord
    from dayzero.stages.run import overview, to_contract

    layouts = _layouts(layout)
    options = _options(layouts=layouts, prompts=_prompts(prompt, prompts), max_new_tokens=max_new_tokens, seed=seed)
    job = _advance(release, target or local_target(layouts or (), runs), runs, options, upto="run", force=force)
    record = job.need("run", RunRecord)
    _show(lambda: to_contract(record), lambda: overview(record), as_json)


@app.command()
def check(release: Release, target: Target, reference: Reference = None, runs: Runs = Path("runs"),
          force: Force = False, as_json: AsJson = False) -> None:
    """Prove that what ran is the released model, layer by layer."""
    from dayzero.schema import Verdict
    from dayzero.stages.check import overview, to_contract

    job = _advance(release, target, runs, _options(reference=reference), upto="check", force=force)
    verdict = job.need("check", Verdict)
    _show(lambda: to_contract(verdict), lambda: overview(verdict), as_json)
    _finish(not verdict.passed)


@app.command()
def emit(release: Release, target: Target, runs: Runs = Path("runs"), force: Force = False,
         as_json: AsJson = False) -> None:
    """Launch commands and machine-readable plan, written to the run directory."""
    from dayzero.schema import Bundle
    from dayzero.stages.emit import overview

    job = _advance(release, target, runs, _options(), upto="emit", force=force)
    bundle = job.need("emit", Bundle)
    _show(lambda: {"folder": str(job.folder.path / "8-bundle"), "commands": bundle.commands, "notes": bundle.notes},
          lambda: overview(bundle), as_json)


@app.command()
def report(release: Release, target: Target, runs: Runs = Path("runs")) -> None:
    """The HTML report of what the run directory holds; prints its path."""
    from dayzero.pipeline import report_path

    job = _advance(release, target, runs, _options(), only="report")
    sys.stdout.write(f"{report_path(job)}\n")


@app.command("import-gguf")
def import_gguf(
    source: Annotated[Path, typer.Argument(help="A .gguf file.")],
    out: Annotated[Path, typer.Argument(help="Folder to write the release to; must not exist or be empty.")],
) -> None:
    """Write an ordinary bf16 safetensors release from a GGUF file (its weights are dequantised, not restored)."""
    from dayzero.runtime.gguf import import_gguf as convert

    with _drawn() as progress:
        written = convert(source, out, progress=progress)
    sys.stdout.write(f"{written}\n")


@app.command()
def card(
    source: Annotated[Path, typer.Argument(help="A card (.toml).")],
    out: Annotated[Path, typer.Argument(help="Folder to write to; must not exist or be empty.")],
) -> None:
    """Write the metadata-only release that a card describes: config, index, shards with headers and no data."""
    from dayzero.stages.read import write_release

    sys.stdout.write(f"{write_release(source, out)}\n")


@app.command()
def manifest(release: Annotated[Path, typer.Argument(help="Release folder.")]) -> None:
    """Write dayzero-manifest.json: size and SHA-256 of every file, which later reads are checked against."""
    from dayzero.stages.read import write_manifest

    with _drawn() as progress:
        written = write_manifest(release, progress=progress)
    sys.stdout.write(f"{written}\n")


@app.command()
def rules(as_json: AsJson = False) -> None:
    """The preflight rules."""
    from dayzero.stages.preflight import rules as all_rules
    from dayzero.stages.preflight import rules_table

    _show(lambda: [{"rule": rule.name, "severity": rule.severity, "what": rule.what} for rule in all_rules()],
          rules_table, as_json)


@app.command()
def devices(as_json: AsJson = False) -> None:
    """The devices that dayzero ships descriptions of, with the source of each figure."""
    from dayzero.data import devices as all_devices
    from dayzero.tables import devices_table

    _show(all_devices, lambda: devices_table(all_devices()), as_json)


@app.command()
def engines(as_json: AsJson = False) -> None:
    """The engine profiles that dayzero ships, with the source of each fact."""
    from dayzero.data import engines as all_engines
    from dayzero.tables import engines_table

    _show(all_engines, lambda: engines_table(all_engines()), as_json)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context,
          version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        sys.stdout.write(f"dayzero {__version__}\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")


def _stop(lines: tuple[str, str], code: int) -> NoReturn:
    sys.stderr.write(f"error: {lines[0]}\nhint: {lines[1]}\n")
    sys.exit(code)


def main() -> None:
    """Entry point of the `dayzero` command."""
    from typer.exceptions import Abort, TyperException

    try:
        code = app(standalone_mode=False)
    except DayzeroError as error:
        if log := getattr(error, "log", ""):
            sys.stderr.write(f"{log}\n")
        _stop((error.message, error.hint), error.exit_code)
    except NotPossible as outcome:
        _stop((f"not possible here: {outcome.reason}", outcome.hint or "see the documentation"), 2)
    except TyperException as error:
        _stop((error.format_message(), "see dayzero --help"), 2)
    except (KeyboardInterrupt, Abort):
        _stop(("interrupted", "the finished stages are kept; the same command goes on from there"), 130)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
