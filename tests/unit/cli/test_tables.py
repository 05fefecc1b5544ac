"""Tables of shipped facts: every fact with its source, kinds of models by version."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from dayzero.cli.tables import engine_table, engines_table, verification_table
from dayzero.data import engine, engines
from dayzero.stages.read import Verification
from dayzero.stages.read.verification import CheckedFile


def printed(renderable: object) -> str:
    console = Console(file=io.StringIO(), width=250)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_every_engine_is_listed_with_the_version_it_was_read_at() -> None:
    text = printed(engines_table(engines()))
    assert all(one.name in text and one.read_at in text for one in engines())


def test_every_fact_of_an_engine_is_shown_with_its_source() -> None:
    for one in engines():
        text = " ".join(printed(engine_table(one)).replace("│", " ").split())
        for name, source in one.sources.items():
            assert name == "name" or (name in text and source.split()[0] in text)


def test_kinds_of_models_are_shown_newest_first() -> None:
    text = printed(engine_table(engine("vllm")))
    # registry.py of 0.10.2 has the first and 0.10.1 has not; 0.10.1 has the second
    assert text.index("0.10.2: ") < text.index("0.10.1: ") < text.index("0.9.2: ") < text.index("not dated: ")


def test_backends_are_shown_with_what_they_run_on() -> None:
    assert "mxfp4: TRITON on sm_90 (default)" in printed(engine_table(engine("tensorrt-llm")))


def test_files_that_differ_are_a_table_and_none_are_a_line() -> None:
    same = CheckedFile(name="a.txt", status="same")
    odd = CheckedFile(name="b[1].txt", status="different", expected="1" * 64, actual="2" * 64)
    found = Verification(origin="manifest[x]", files=(same,), bytes_read=0, seconds=0.0)
    assert printed(verification_table(found)).splitlines() == [
        "verify: pass (1 same): nothing differs", "compared with manifest[x]; read 0 B in 0.0 s"]
    assert "b[1].txt" in printed(verification_table(msgspec.structs.replace(found, files=(same, odd))))
