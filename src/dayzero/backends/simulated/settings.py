"""What the environment says about the simulated accelerator."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from dayzero.errors import UsageError
from dayzero.schema import Noun

PREFIX = "DAYZERO_SIMULATED_"
_MOST_DEVICES = 64
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kMGT]i?B|B)?")
_UNITS = {"B": 1, **{f"{letter}{kind}": base ** (power + 1) for kind, base in (("B", 1000), ("iB", 1024))
                     for power, letter in enumerate("kMGT")}}
_OPERATOR = re.compile(r"(\w+)\.(\w+(?:\.\w+)?)(?:/(\w+))?")


class Settings(Noun, frozen=True, kw_only=True):
    """The simulated accelerator of one process."""

    devices: int = 8
    """How many."""
    memory: int = 4 << 30
    """Bytes of each."""
    denied: tuple[str, ...] = ()
    """Operators that they do not have, such as aten.topk or aten.mm/bf16 (for that dtype of the first tensor)."""
    fallback: bool = True
    """Whether those run on the host."""


def settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """What is set, or the defaults. Raises UsageError."""
    given = {name.removeprefix(PREFIX).lower(): text.strip() for name, text in environment.items()
             if name.startswith(PREFIX) and text.strip()}
    made = Settings()
    if odd := sorted(set(given) - {"devices", "memory", "deny", "fallback"}):
        raise UsageError(f"{PREFIX}{odd[0].upper()} is no setting", f"{PREFIX}DEVICES, MEMORY, DENY or FALLBACK")
    return Settings(
        devices=_count(given["devices"]) if "devices" in given else made.devices,
        memory=size_of(given["memory"]) if "memory" in given else made.memory,
        denied=operators_of(given.get("deny", "")), fallback=_switch(given.get("fallback", "1")))


def size_of(text: str) -> int:
    """`4GiB` -> bytes. Raises UsageError."""
    match = _SIZE.fullmatch(text)
    size = int(float(match["number"]) * _UNITS[match["unit"] or "B"]) if match else 0
    if size < 1:
        raise UsageError(f"{PREFIX}MEMORY: {text!r} is no size", "write it like 4GiB, 500MB or 123456")
    return size


def operators_of(text: str) -> tuple[str, ...]:
    """`aten.topk,aten.mm/bf16` -> its parts. Raises UsageError for what is no name of an operator."""
    names = tuple(filter(None, (part.strip() for part in text.split(","))))
    for name in names:
        if not _OPERATOR.fullmatch(name):
            raise UsageError(f"{PREFIX}DENY: {name!r} is no operator",
                             "write it like aten.topk, or aten.mm/bf16 for one dtype")
    return names


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_DEVICES:
        raise UsageError(f"{PREFIX}DEVICES: {text!r} is no number of devices", f"1 to {_MOST_DEVICES}")
    return int(text)


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise UsageError(f"{PREFIX}FALLBACK: {text!r} is neither 0 nor 1", "0: what is missing raises; 1: the host")
    return text == "1"
