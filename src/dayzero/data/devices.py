"""The devices that dayzero ships descriptions of: one TOML file each, with the source of every figure."""

from __future__ import annotations

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
