"""The devices that dayzero ships descriptions of: one TOML file each, with the source of every figure."""

from __future__ import annotations

import re
from functools import cache

import msgspec

from dayzero.schema import Device

from .files import load, names

FP8_DIALECTS = {"e4m3": "e4m3fn", "e4m3fn": "e4m3fn", "e4m3fnuz": "e4m3fnuz"}
"""Spellings of the dialects of 8-bit floats, and the one that is used inside."""
LOCAL = "local"
"""Name, in target files, of the machine that dayzero runs on; it is measured and has no file."""


def device(name: str) -> Device:
    """The device of that name. Raises TargetError with the nearest known name."""
    return msgspec.convert(load("devices", name, "device", also=(LOCAL,)), Device)


def devices() -> tuple[Device, ...]:
    """All devices, by name."""
    return tuple(device(name) for name in names("devices"))


@cache
def known_device(text: str) -> Device | None:
    """The shipped device that a text names however it spells it; of several the one with the longest
    name."""
    letters = re.sub(r"[^a-z0-9]", "", text.lower())
    named = [one for one in devices() if one.name in letters]
    return max(named, key=lambda one: len(one.name), default=None)
