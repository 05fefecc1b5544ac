"""A release that ships Python files, as a case for the rules that read them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from tests.support.plan_models import target
from tests.support.tiny_release import CONFIG

from dayzero.schema import Engine, Target
from dayzero.schema.target import EngineRequest
from dayzero.stages.preflight import Case
from dayzero.stages.read import read

AUTO_MAP = {"AutoConfig": "configuration_tiny.TinyConfig", "AutoModelForCausalLM": "modeling_tiny.TinyForCausalLM"}


def engine(name: str = "any", version: str = "", sources: dict[str, str] | None = None, **facts: object) -> Target:
    """A target whose engine states these facts."""
    stated = Engine(name=name, version=version, facts=EngineRequest(**facts), kv_replication=True,  # type: ignore[arg-type]
                    redundant_experts=None, head_padding="none", block_padding=False, vision="replicated",
                    sources=sources or {})
    return msgspec.structs.replace(target(1), engine=stated)


def case(folder: Path, files: dict[str, str], on: Target | None = None, **config: object) -> Case:
    """The case of a release of a config and these files."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    return Case(read(folder, metadata_only=True), on or engine())
