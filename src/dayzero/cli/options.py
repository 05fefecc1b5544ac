"""What the verbs share: their options, and how they start a job and print a result."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dayzero.errors import LayoutError, ReleaseError, StageError, UsageError

from .streams import output

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from dayzero.job import Job, Options
    from dayzero.progress import Progress
    from dayzero.runtime.isolation import Limits
    from dayzero.schema import Layout
    from dayzero.schema import Release as ReleaseRead

RELEASE_HELP = "Release folder, card (.toml), hub id (org/name) or URL of a store."
TARGET_HELP = "target.toml: cluster, engine, workload."
Release = Annotated[str, typer.Argument(help=RELEASE_HELP)]
Target = Annotated[Path, typer.Option("--target", "-t", help=TARGET_HELP)]
Runs = Annotated[Path, typer.Option("--runs", help="Folder of the run directories.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Force = Annotated[bool, typer.Option("--force", help="Make the stages again, even if nothing changed.")]
Prompts = Annotated[list[str] | None, typer.Option("--prompt", help="Prompt to generate from; may be repeated.")]
PromptFile = Annotated[Path | None, typer.Option("--prompts", help="File with one prompt a line.")]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Tokens to generate for each prompt.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of everything random.")]
Reference = Annotated[str | None, typer.Option("--reference", help="Release to compare with; default: itself.")]
MetadataOnly = Annotated[bool, typer.Option("--metadata-only", help="From a hub: headers, no weights.")]
Revision = Annotated[str | None, typer.Option("--revision", help="Revision of a hub id.")]
Layouts = Annotated[list[str] | None, typer.Option("--layout", help="Layout to run, like tp=2,pp=1; repeatable.")]
Trust = Annotated[bool, typer.Option(
    "--trust-remote-code", help="Run the release's own code: no network, own folder, limits.")]
CodeSeconds = Annotated[float, typer.Option("--code-seconds", min=1, help="Seconds that code may take.")]
CodeMemory = Annotated[float, typer.Option("--code-memory", min=0.25, help="GiB that code may take.")]
SECONDS, MEMORY = 900.0, 12.0
"""What the release's own code may take by default."""

T = TypeVar("T")
_DURATION = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>us|ms|s|min)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_SIZE = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>[kmgt]i?b|b)", re.IGNORECASE)
_BYTES = {"b": 1} | {f"{prefix}{word}": step ** (power + 1) for word, step in (("b", 1000), ("ib", 1024))
                     for power, prefix in enumerate("kmgt")}
_ONE_A_LINE = "give a text file with one prompt a line"
_PROMPTS_LIMIT = 64 * 2**20


def options_of(**chosen: Any) -> Options:
    """The options that were chosen; None leaves the default."""
    from dayzero.job import Options

    return Options(**{name: value for name, value in chosen.items() if value is not None})


def trust_of(trust: bool, seconds: float = SECONDS, memory: float = MEMORY) -> Limits | None:
    """The limits of the release's own code (`memory` in GiB); None where it is not to run. Raises UsageError for
    limits of what does not run."""
    if not trust:
        if (seconds, memory) != (SECONDS, MEMORY):
            raise UsageError("--code-seconds and --code-memory limit code that does not run", "add --trust-remote-code")
        return None
    from dayzero.runtime.isolation import Limits

    return Limits(seconds=seconds, memory=int(memory * 2**30))


def prompts_of(given: list[str] | None, file: Path | None) -> tuple[str, ...] | None:
    """Prompts from the command line, then those of the file. Raises UsageError for a file without any."""
    if file is None:
        return tuple(given) if given else None
    from dayzero.stages.read.folder import read_bounded

    try:
        lines = read_bounded(file, _PROMPTS_LIMIT, str(file)).decode().splitlines()
    except (ReleaseError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the prompts: {error}", _ONE_A_LINE) from None
    prompts = (*(given or ()), *(line for line in lines if line.strip()))
    if not prompts:
        raise UsageError(f"{file} has no prompt", _ONE_A_LINE)
    return prompts


def names_of(given: list[str] | None) -> tuple[str, ...] | None:
    """Names of rules: repeated, or with commas between them."""
    return tuple(name.strip() for text in given for name in text.split(",")) if given else None


def required(name: str, value: T | None) -> T:
    """What preflight needs unless it is asked to explain a rule. Raises UsageError."""
    if value is None:
        raise UsageError(f"Missing {name}.", "see dayzero preflight --help")
    return value


def one_output(as_json: bool, sarif: str | None) -> None:
    """Raise UsageError where two things are to be printed on standard output, or one has no name."""
    if as_json and sarif == "-":
        raise UsageError("--json and --sarif - both print on standard output", "give --sarif a file")
    if sarif == "":
        raise UsageError("--sarif has no file", "give it a file, or - for standard output")


def layouts_of(given: list[str] | None) -> tuple[Layout, ...] | None:
    """Layouts from the command line; an empty one is a slip, not a wish for one device. Raises LayoutError."""
    from dayzero.schema import Layout

    if any(not text.strip(" ,") for text in given or ()):
        raise LayoutError("a layout is empty", "write it like tp=2,pp=1, or tp=1 for one device")
    return tuple(Layout.parse(text) for text in given) if given else None


def seconds_of(option: str, given: str | None) -> float | None:
    """`15ms` -> 0.015; None stays None. A number without its unit could be either. Raises UsageError."""
    if given is None:
        return None
    match = _DURATION.fullmatch(given.strip())
    seconds = float(match["number"]) * _SECONDS[match["unit"]] if match else 0.0
    if not seconds:
        raise UsageError(f"{option}: {given!r} is no time above 0", "write it with its unit, us, ms, s or min: 15ms")
    return seconds


def bytes_of(option: str, given: str | None) -> int:
    """`1.5GB` -> 1500000000; 0: not given. Raises UsageError."""
    if given is None:
        return 0
    found = _SIZE.fullmatch(given.strip())
    if found is None:
        raise UsageError(f"{option}: {given!r} is no size", "write it like 1.5GB or 2GiB")
    return int(float(found["number"]) * _BYTES[found["unit"].lower()])


def advanced(release: str, target: Path, runs: Path, options: Options, **stages: Any) -> Job:
    """The job, advanced as `stages` says (see pipeline.advance), with progress drawn on standard error."""
    from dayzero.pipeline import advance, open_job

    with drawn_progress() as progress:
        return advance(open_job(release, target, runs=runs, options=options, progress=progress), **stages)


def made(job: Job, stage: str, noun: type[T]) -> T:
    """What a stage made. Raises StageError when it has made nothing because it, or one that it needs, failed;
    NotPossible when it cannot run here."""
    failed = next((each for each in job.made.values() if each.status == "failed"), None)
    if failed and job.get(stage, noun) is None:
        message, _, log = failed.reason.partition("\n")
        raise StageError(message, failed.hint, log)
    return job.need(stage, noun)


def drawn_progress() -> AbstractContextManager[Progress]:
    """Live progress on a terminal, one line a stage elsewhere."""
    from .progress import drawn

    return drawn(console(stderr=True))


def console(*, stderr: bool = False) -> Console:
    """Standard output or standard error, for people."""
    from .console import SafeConsole

    return SafeConsole(stderr=stderr)


def print_json(value: Any) -> None:
    """One JSON object on standard output: UTF-8, whatever the terminal's encoding."""
    from dayzero.schema import to_json

    data = to_json(value) + b"\n"
    with output():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)


def write_json(path: str, value: Any) -> None:
    """JSON in a file, or on standard output for `-`."""
    if path == "-":
        print_json(value)
        return
    from dayzero.schema import to_json
    from dayzero.schema.store import write_atomic

    write_atomic(Path(path), to_json(value) + b"\n")


def print_rule(name: str, as_json: bool) -> None:
    """The page of one rule. Raises UsageError for an unknown one."""
    from dayzero.stages.preflight import rule_page, rules

    page = rule_page(name)
    show(lambda: next({"rule": rule.name, "severity": rule.severity, "what": rule.what, "page": rule.doc}
                      for rule in rules() if rule.name == name), lambda: page, as_json)


def print_keys(release: ReleaseRead, target: Path | None, declared: bool, trust: Limits | None, as_json: bool) -> None:
    """The ledger of config keys; `declared`: with what the library's code reads, or under `trust` the release's own.
    Raises TargetError, and NotPossible where there is no class for the model."""
    from dayzero.resolve import read_engine
    from dayzero.stages.preflight import config_ledger, ledger_table
    from dayzero.stages.trace import consumption

    consumed = consumption(release, trust=trust) if declared else None
    engine = read_engine(target) if target else None
    entries = config_ledger(release, engine, consumed)
    library = {"library": {"source": consumed.source, "incomplete": consumed.incomplete}} if consumed else {}
    show(lambda: {"name": release.name, **library, "keys": entries}, lambda: ledger_table(entries, engine), as_json)


def show(value: Callable[[], Any], renderable: Callable[[], RenderableType], as_json: bool) -> None:
    """`value()` as JSON, or `renderable()` for people."""
    if as_json:
        print_json(value())
    else:
        made = renderable()
        with output():
            console().print(made)


def finish(failed: bool) -> None:
    """Exit code 1 when a verdict is fail."""
    if failed:
        raise typer.Exit(1)
