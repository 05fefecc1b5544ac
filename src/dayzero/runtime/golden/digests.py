"""Digests of kept values, `algorithm:hex`: against damage, not against forgery."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

ALGORITHMS: dict[str, Callable[[], Any]] = {"sha256": hashlib.sha256}
"""What makes one, by name; the last one is used."""
try:
    from xxhash import xxh3_128
except ImportError:  # an engine's environment, which dayzero is not installed in
    pass
else:
    ALGORITHMS["xxh3_128"] = xxh3_128  # five times as fast
_USED = list(ALGORITHMS)[-1]


def digest(data: memoryview) -> str:
    """Of bytes."""
    made = ALGORITHMS[_USED]()
    made.update(data)
    return f"{_USED}:{made.hexdigest()}"


class Comparing:
    """Bytes, against the digest that was made of them."""

    def __init__(self, wanted: str) -> None:
        """Raises KeyError for an algorithm that is not known."""
        self._name, _, self._wanted = wanted.partition(":")
        self._made = ALGORITHMS[self._name]()

    def update(self, data: Any) -> None:
        """More of them."""
        self._made.update(data)

    @property
    def same(self) -> bool:
        """Whether they are what the digest was made of."""
        return bool(self._made.hexdigest() == self._wanted)
