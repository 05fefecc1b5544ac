"""Verbs for files and for the facts that dayzero ships."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dayzero.errors import UsageError

from .app import app
from .options import (
    MEMORY,
    SECONDS,
    AsJson,
    CodeMemory,
    CodeSeconds,
    Revision,
    Trust,
    drawn_progress,
    print_rule,
    show,
    trust_of,
)
from .outputs import refuse_output
from .streams import output


@app.command("import-gguf")
def import_gguf(
    source: Annotated[Path, typer.Argument(help="A .gguf file.")],
    out: Annotated[Path, typer.Argument(help="Folder to write the release to; must not exist or be empty.")],
) -> None:
    """Write an ordinary bf16 safetensors release from a GGUF file (its weights are dequantised, not restored)."""
    from dayzero.runtime.gguf import import_gguf as convert

    with drawn_progress() as progress:
        written = convert(source, out, progress=progress)
    sys.stdout.write(f"{written}\n")


@app.command()
def card(
    source: Annotated[str, typer.Argument(help="A card (.toml), or a release: folder or hub id (org/name).")],
    out: Annotated[Path | None, typer.Argument(
        help="Of a card: folder to write its release to, which must not exist or be empty. Of a release: file to write "
             "its card to; absent: it is printed.")] = None,
    against: Annotated[str | None, typer.Option(
        "--against", help="Compare what the code of SOURCE runs with what follows from this card, or release.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="With --against: sequences.")] = 1,
    tokens: Annotated[int, typer.Option(min=1, help="With --against: new tokens in prefill.")] = 64,
    context: Annotated[int, typer.Option(min=1, help="With --against: cached tokens in decode.")] = 64,
    top: Annotated[int, typer.Option(min=1, help="With --against: rows of each table.")] = 20,
    revision: Revision = None, trust_remote_code: Trust = False, code_seconds: CodeSeconds = SECONDS,
    code_memory: CodeMemory = MEMORY, as_json: AsJson = False,
) -> None:
    """A card's metadata-only release (config, index, shards with headers and no data), or a release's card; or what
    a card does not say about a release's code."""
    from dayzero.schema.store import write_atomic
    from dayzero.stages.read import card_of, card_text, write_release
    from dayzero.stages.read import read as read_release

    trust = trust_of(trust_remote_code, code_seconds, code_memory)
    if against is not None:
        if out is not None:
            raise UsageError("--against writes nothing", "leave the second argument out")
        _show_agreement(source, against, top, as_json, batch=batch, tokens=tokens, context=context, trust=trust,
                        revision=revision)
        return
    if trust or as_json:
        raise UsageError("no code runs to write a card or a release, and they are not JSON", "add --against")
    if source.endswith(".toml"):
        if revision is not None:
            raise UsageError("a card is not on a hub and has no revision", "leave the revision out")
        if out is None:
            raise UsageError("a card's release needs a folder", "name one that does not exist yet as second argument")
        sys.stdout.write(f"{write_release(source, out)}\n")
        return
    if out is not None:
        refuse_output("OUT", out, (source,))
    with drawn_progress() as progress:
        text = card_text(card_of(read_release(source, revision=revision, metadata_only=True, progress=progress)))
    if out is not None:
        write_atomic(out, text.encode())
    with output():
        sys.stdout.write(text if out is None else f"{out}\n")


def _show_agreement(source: str, against: str, top: int, as_json: bool, **options: Any) -> None:
    """The trace of one release against the graph that follows from the other."""
    from dayzero.stages.trace import agree, agreement_tables, formula
    from dayzero.traced import read_for_trace, traced

    with drawn_progress() as progress:
        code = traced(source, progress=progress, **options)
        sizes = {name: options[name] for name in ("batch", "tokens", "context")}
        found = agree(code, formula.graph(read_for_trace(against, progress=progress).model, **sizes))
    show(lambda: found, lambda: agreement_tables(found, top), as_json)


@app.command()
def manifest(release: Annotated[Path, typer.Argument(help="Release folder.")]) -> None:
    """Write dayzero-manifest.json: size and SHA-256 of every file, which later reads are checked against."""
    from dayzero.stages.read import write_manifest

    with drawn_progress() as progress:
        written = write_manifest(release, progress=progress)
    sys.stdout.write(f"{written}\n")


@app.command()
def rules(name: Annotated[str | None, typer.Argument(help="A rule, to print its page.")] = None,
          as_json: AsJson = False) -> None:
    """The preflight rules, or the page of one."""
    from dayzero.stages.preflight import rules as all_rules
    from dayzero.stages.preflight import rules_table

    if name is not None:
        print_rule(name, as_json)
        return
    show(lambda: [{"rule": rule.name, "severity": rule.severity, "what": rule.what} for rule in all_rules()],
          rules_table, as_json)


@app.command()
def devices(as_json: AsJson = False) -> None:
    """The devices that dayzero ships descriptions of, with the source of each figure."""
    from dayzero.data import devices as all_devices

    from .tables import devices_table

    show(all_devices, lambda: devices_table(all_devices()), as_json)


@app.command()
def engines(
    name: Annotated[str | None, typer.Argument(help="Engine, or the path of a profile of your own (.toml).")] = None,
    as_json: AsJson = False,
) -> None:
    """The engine profiles that dayzero ships; of one engine every fact with its source (docs/engines.md)."""
    from dayzero.data import engine
    from dayzero.data import engines as all_engines

    from .tables import engine_table, engines_table

    if name is not None:
        one = engine(name)
        show(lambda: one, lambda: engine_table(one), as_json)
        return
    show(all_engines, lambda: engines_table(all_engines()), as_json)
