"""Profiles of engines: what is true of each whatever the model, one TOML file each, with the source of every fact."""

from __future__ import annotations

import msgspec

from dayzero.errors import did_you_mean
from dayzero.schema import Engine
from dayzero.schema.target import EngineRequest

from .files import load, names

NEUTRAL = "any"
"""The profile of an engine that the target does not name."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine file."""

    name: str
    """Name that target files use."""
    facts: EngineRequest
    """What is true of it."""
    sources: dict[str, str]
    """For each fact: where it is from."""


def profile(name: str) -> Profile:
    """The file of that engine. Raises TargetError with the nearest known name."""
    return msgspec.convert(load("engines", name, "engine"), Profile)


def resolve_engine(request: EngineRequest) -> Engine:
    """The profile that the request names (or the neutral one), with the request's facts on top, as a target has it."""
    stated = {key: value for key, value in msgspec.structs.asdict(request).items() if value is not None}
    name = request.name or NEUTRAL
    base = profile(NEUTRAL if _described(name, stated) else name)
    facts = msgspec.structs.replace(base.facts, **stated)
    return Engine(
        name=name, version=facts.version or "", facts=facts, kv_replication=facts.kv_replication is not False,
        redundant_experts=facts.redundant_experts, head_padding=facts.head_padding or "none",
        block_padding=bool(facts.block_padding), vision=facts.vision or "replicated",
        sources={**base.sources, **dict.fromkeys(stated, "target file")})


def _described(name: str, stated: dict[str, object]) -> bool:
    """Whether the target itself describes an engine that no file is named after (and does not just misspell one)."""
    known = names("engines")
    return name not in known and len(stated.keys() - {"name", "version"}) > 0 and not did_you_mean(name, known)


def engine(name: str) -> Engine:
    """The engine of that name, as its profile describes it. Raises TargetError with the nearest known name."""
    return resolve_engine(EngineRequest(name=name))


def engines() -> tuple[Engine, ...]:
    """All profiles, by name."""
    return tuple(engine(name) for name in names("engines"))
