"""Profiles of engines: what is true of each whatever the model, one TOML file each, with the source of every fact."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dayzero.errors import TargetError, did_you_mean
from dayzero.schema import Engine
from dayzero.schema.target import EngineRequest

from .files import load, load_own, names

NEUTRAL = "any"
"""The profile of an engine that the target does not name."""
OWN = ".toml"
"""Ending of names that are paths of a user's own profiles."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine file."""

    name: str
    """Name that target files use."""
    also: list[str] = []
    """Other names that they may use."""
    facts: EngineRequest
    """What is true of it."""
    sources: dict[str, str]
    """For each fact: where it is from."""
    read_at: str = ""
    """Version (or `commit ...`) of the engine at which the facts were read; empty: they are true of any."""
    read_from: str = ""
    """Oldest version that `supported_since` was made from; empty: not known."""
    complete: list[str] = []
    """Facts that list everything there is at that version: what is missing from them is not there."""


def profile(name: str) -> Profile:
    """The shipped file of that engine. Raises TargetError with the nearest known name."""
    return msgspec.convert(load("engines", _canonical(name), "engine"), Profile)


def own_profile(path: Path) -> Profile:
    """A user's own file, which has the form of the shipped ones. Raises TargetError for anything wrong in it."""
    hint = "docs/engines.md shows what an engine's file looks like"
    try:
        own = msgspec.convert(load_own(path, hint), Profile)
    except msgspec.ValidationError as error:
        raise TargetError(f"{path}: {str(error).replace('`', '')}", hint) from None
    stated = {key for key, value in msgspec.structs.asdict(own.facts).items() if value is not None}
    for key in sorted(stated - own.sources.keys()):
        raise TargetError(f"{path}: the fact {key} has no source", f"say in [sources] where {key} is from")
    for key in sorted({*own.sources, *own.complete} - stated):
        raise TargetError(f"{path}: [sources] or complete names {key}, which is no fact of [facts]",
                          did_you_mean(key, stated) or hint)
    return own


def resolve_engine(request: EngineRequest, folder: Path = Path()) -> Engine:
    """The profile that the request names (or the neutral one), with the request's facts on top, as a target has it.

    A name that ends in .toml is the path of a user's own profile, from `folder`, where the target lies. Raises
    TargetError.
    """
    stated = {key: value for key, value in msgspec.structs.asdict(request).items() if value is not None}
    name = _canonical(request.name or NEUTRAL)
    if name.endswith(OWN):
        base = own_profile(folder / Path(name).expanduser())
        name = base.name
    else:
        base = profile(NEUTRAL if _described(name, stated) else name)
    stated |= {"name": name} if request.name else {}
    facts = msgspec.structs.replace(base.facts, **stated)
    return Engine(
        name=name, version=facts.version or "", read_at=base.read_at, read_from=base.read_from,
        complete=tuple(base.complete), facts=facts,
        kv_replication=facts.kv_replication is not False,
        redundant_experts=facts.redundant_experts, head_padding=facts.head_padding or "none",
        block_padding=bool(facts.block_padding), vision=facts.vision or "replicated",
        sources={**base.sources, **dict.fromkeys(stated, "target file")})


def _canonical(name: str) -> str:
    """The name of the shipped profile that is also known by that one; the name itself where there is none."""
    known = names("engines")
    if name in known or name.endswith(OWN):
        return name
    return next((one for one in known if name in load("engines", one, "engine").get("also", ())), name)


def _described(name: str, stated: dict[str, object]) -> bool:
    """Whether the target itself describes an engine that no file is named after (and does not just misspell one)."""
    known = names("engines")
    return name not in known and len(stated.keys() - {"name", "version"}) > 0 and not did_you_mean(name, known)


def engine(name: str) -> Engine:
    """The engine of that name (or path of a profile), as its profile describes it. Raises TargetError with the nearest
    known name."""
    return resolve_engine(EngineRequest(name=name))


def engines() -> tuple[Engine, ...]:
    """All profiles, by name."""
    return tuple(engine(name) for name in names("engines"))
