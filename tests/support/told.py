"""Findings of single rules on a small release."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from tests.support import tiny_release as tiny
from tests.support.plan_models import target

from dayzero.schema import Finding
from dayzero.schema.target import Declared
from dayzero.stages.preflight import preflight
from dayzero.stages.read import read

Told = Callable[..., list[Finding]]


def teller(folder: Path, *rules: str) -> Told:
    """A function of (tensors, config, partial, [engine] facts) that gives what those rules find."""

    def tell(tensors: tiny.Tensors, config: dict[str, object] = tiny.CONFIG, *, partial: bool = False,
             declares: dict[str, tuple[list[int], str]] | None = None, **facts: Any) -> list[Finding]:
        if declares:
            facts["declares"] = [Declared(name=name, shape=shape, dtype=dtype)
                                 for name, (shape, dtype) in declares.items()]
        on = target(1)
        engine = msgspec.structs.replace(on.engine, facts=msgspec.structs.replace(on.engine.facts, **facts))
        on = msgspec.structs.replace(on, engine=engine, partial=partial)
        found = preflight(read(tiny.write(folder / "release", tensors, config), cache=folder / "cache"), on)
        return [finding for finding in found.findings if finding.rule in rules]

    return tell
