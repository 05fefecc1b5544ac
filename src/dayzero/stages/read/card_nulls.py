"""TOML has no null: keys of a config that are null are listed beside it, as JSON pointers (RFC 6901)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from dayzero.errors import CardError

_ESCAPES = {"~": "~0", "/": "~1"}


def without_nulls(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(The config without them, pointers to where they were.)"""
    nulls: list[str] = []
    return _kept(dict(config), "", nulls), nulls


def with_nulls(config: dict[str, Any], nulls: list[str]) -> dict[str, Any]:
    """The way back. Raises CardError for a pointer to nowhere."""
    whole = deepcopy(config)
    for pointer in nulls:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]] or [""]
        place = whole
        try:
            for part in path:
                place = place[int(part) if isinstance(place, list) else part]
            if isinstance(place, list):
                place.insert(int(last), None)
            else:
                place.setdefault(last, None)
        except (LookupError, ValueError, AttributeError):
            raise CardError(f"nulls names {pointer!r}, which is nowhere in [config]",
                            "write JSON pointers such as /text_config/sliding_window") from None
    return whole


def _kept(value: Any, at: str, nulls: list[str]) -> Any:
    if isinstance(value, Mapping):
        inner = [(key, f"{at}/{re.sub('[~/]', lambda found: _ESCAPES[found[0]], key)}", own)
                 for key, own in value.items()]
    elif isinstance(value, (list, tuple)):
        inner = [("", f"{at}/{index}", own) for index, own in enumerate(value)]
    else:
        return value
    nulls += [pointer for _, pointer, own in inner if own is None]
    kept = [(key, _kept(own, pointer, nulls)) for key, pointer, own in inner if own is not None]
    return dict(kept) if isinstance(value, Mapping) else [own for _, own in kept]
