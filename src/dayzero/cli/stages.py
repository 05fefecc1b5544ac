"""One verb for each stage."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dayzero.errors import UsageError

from .app import app
from .options import (
    MEMORY,
    RELEASE_HELP,
    SECONDS,
    TARGET_HELP,
    AsJson,
    CodeMemory,
    CodeSeconds,
    Force,
    Layouts,
    MetadataOnly,
    NewTokens,
    PromptFile,
    Prompts,
    Reference,
    Release,
    Revision,
    Runs,
    Seed,
    Target,
    Trust,
    advanced,
    console,
    drawn_progress,
    finish,
    layouts_of,
    made,
    names_of,
    one_output,
    options_of,
    print_keys,
    print_rule,
    prompts_of,
    required,
    show,
    trust_of,
    write_json,
)
from .outputs import refuse_output


@app.command()
def adapt(
    release: Release, target: Target, runs: Runs = Path("runs"),
    from_stage: Annotated[str | None, typer.Option("--from", help="Make this stage and those after it again.")] = None,
    only: Annotated[str | None, typer.Option("--only", help="Make only this stage again.")] = None,
    force: Force = False, layout: Layouts = None, prompt: Prompts = None, prompts: PromptFile = None,
    max_new_tokens: NewTokens = 32, seed: Seed = 0, reference: Reference = None,
    metadata_only: MetadataOnly = False, revision: Revision = None, trust_remote_code: Trust = False,
    code_seconds: CodeSeconds = SECONDS, code_memory: CodeMemory = MEMORY, as_json: AsJson = False,
) -> None:
    """All stages: read, preflight, trace, plan, run, check, emit, report."""
    from dayzero.pipeline import failed, report_path, results
    from dayzero.stages.report import summary, unproven

    options = options_of(layouts=layouts_of(layout), prompts=prompts_of(prompt, prompts), max_new_tokens=max_new_tokens,
                       seed=seed, reference=reference, metadata_only=metadata_only, revision=revision,
                       trust=trust_of(trust_remote_code, code_seconds, code_memory))
    job = advanced(release, target, runs, options, from_stage=from_stage, only=only, force=force)
    outcome, why = results(job), failed(results(job))
    left = unproven(outcome)
    proven = outcome.verdict.passed and not left if outcome.verdict else None
    show(lambda: {"run": str(job.folder.path), "adapted": not why, "why_not": why, "proven": proven,
                  "not_proven": left, "stages": outcome.stages,
                  "waived": outcome.findings.waived if outcome.findings else (), "report": str(report_path(job))},
         lambda: summary(outcome), as_json)
    console(stderr=True).print(f"report: {report_path(job)}", markup=False, soft_wrap=True)
    finish(bool(why))


@app.command()
def read(
    release: Release, metadata_only: MetadataOnly = False, revision: Revision = None,
    keys: Annotated[bool, typer.Option("--keys", help="Where each config key that changes results is read.")] = False,
    target: Annotated[Path | None, typer.Option("--target", "-t", help="With --keys: whose engine reads them.")] = None,
    declared: Annotated[bool, typer.Option("--declared", help="With --keys: what transformers' model reads.")] = False,
    trust_remote_code: Trust = False, code_seconds: CodeSeconds = SECONDS, code_memory: CodeMemory = MEMORY,
    as_json: AsJson = False,
) -> None:
    """What the release's files say: tensors, layers, parameters, quantisation."""
    from dayzero.stages.read import read as read_release
    from dayzero.stages.report import release_card

    if target is not None and not keys:
        raise UsageError("--target says whose engine reads the keys, and none are asked for", "add --keys")
    if declared and not keys:
        raise UsageError("--declared says whose code reads the keys, and none are asked for", "add --keys")
    if trust_remote_code and not declared:
        raise UsageError("--trust-remote-code says whose code reads the keys, and that is not asked", "add --declared")
    trust = trust_of(trust_remote_code, code_seconds, code_memory)
    with drawn_progress() as progress:
        found = read_release(release, revision=revision, metadata_only=metadata_only, progress=progress)
    if keys:
        print_keys(found, target, declared, trust, as_json)
        return
    show(lambda: {"name": found.name, "origin": found.origin, "has_weights": found.has_weights,
                   "tensors": found.tensors.count, "model": found.model},
          lambda: release_card(found), as_json)


@app.command()
def preflight(
    release: Annotated[str | None, typer.Argument(help=RELEASE_HELP)] = None,
    target: Annotated[Path | None, typer.Option("--target", "-t", help=TARGET_HELP)] = None,
    metadata_only: MetadataOnly = False, revision: Revision = None, runs: Runs = Path("runs"), force: Force = False,
    values: Annotated[bool, typer.Option("--values", help="Read small tensors too: norms, scales, biases.")] = False,
    declared: Annotated[bool, typer.Option("--declared", help="Compare with transformers' model.")] = False,
    trust_remote_code: Trust = False, code_seconds: CodeSeconds = SECONDS, code_memory: CodeMemory = MEMORY,
    select: Annotated[list[str] | None, typer.Option(
        "--select", help="Only these rules: names, or prefixes like quant-; commas or repeated.")] = None,
    ignore: Annotated[list[str] | None, typer.Option("--ignore", help="Leave these rules out, likewise.")] = None,
    explain: Annotated[str | None, typer.Option("--explain", help="Print the page of this rule, nothing else.")] = None,
    as_json: AsJson = False,
    sarif: Annotated[str | None, typer.Option("--sarif", help="Write SARIF 2.1.0 to a file; -: print it.")] = None,
) -> None:
    """Everything that can be seen to go wrong before anything is launched."""
    from dayzero.schema import Findings
    from dayzero.schema import Release as ReleaseRead
    from dayzero.schema import Target as TargetRead
    from dayzero.stages.preflight import overview
    from dayzero.stages.preflight import sarif as sarif_log

    if explain is not None:
        print_rule(explain, as_json)
        return
    source, file = required("argument 'RELEASE'", release), required("option '--target' / '-t'", target)
    one_output(as_json, sarif)
    if trust_remote_code and not declared:
        raise UsageError("--trust-remote-code says whose model to compare with, and none is", "add --declared")
    if sarif is not None and sarif != "-":
        refuse_output("--sarif", Path(sarif), (source, file))
    options = options_of(metadata_only=metadata_only, revision=revision, values=values, declared=declared,
                         select=names_of(select), ignore=names_of(ignore),
                         trust=trust_of(trust_remote_code, code_seconds, code_memory))
    job = advanced(source, file, runs, options, upto="preflight", force=force)
    found = made(job, "preflight", Findings)
    read_release, on = job.need("read", ReleaseRead), job.need("target", TargetRead)
    if sarif is not None:
        write_json(sarif, sarif_log(found, read_release, on, file))
    if sarif != "-":
        show(lambda: {"verdict": found.verdict, "findings": found.findings, "facts": found.facts,
                      "waived": found.waived}, lambda: overview(found, read_release, on), as_json)
    finish(found.verdict == "fail")


@app.command()
def emit(release: Release, target: Target, runs: Runs = Path("runs"), force: Force = False,
         as_json: AsJson = False) -> None:
    """Launch commands and machine-readable plan, written to the run directory; exit code 1 without a command."""
    from dayzero.schema import Bundle
    from dayzero.stages.emit import overview

    job = advanced(release, target, runs, options_of(), upto="emit", force=force)
    bundle = made(job, "emit", Bundle)
    show(lambda: {"folder": str(job.folder.path / "8-bundle"), "commands": bundle.commands, "notes": bundle.notes},
          lambda: overview(bundle), as_json)
    finish(not bundle.commands)


@app.command()
def report(release: Release, target: Target, runs: Runs = Path("runs")) -> None:
    """The HTML report of what the run directory holds; prints its path."""
    from dayzero.pipeline import report_path
    from dayzero.schema import Bundle

    job = advanced(release, target, runs, options_of(), only="report")
    made(job, "report", Bundle)
    sys.stdout.write(f"{report_path(job)}\n")
