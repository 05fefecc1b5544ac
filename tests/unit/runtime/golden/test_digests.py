"""Digests of values, by whichever algorithm is there."""

from __future__ import annotations

import hashlib

import pytest

from dayzero.runtime.golden import digests


def test_known_digests() -> None:
    assert digests.digest(memoryview(b"")) == "xxh3_128:99aa06d3014798d86001c324468d497f"  # xxHash's own test vector
    found = digests.Comparing("xxh3_128:99aa06d3014798d86001c324468d497f")
    assert found.same
    found.update(b"a")
    assert not found.same


def test_what_an_engine_wrote_without_the_fast_one_is_compared() -> None:
    found = digests.Comparing(f"sha256:{hashlib.sha256(b'ab').hexdigest()}")
    found.update(b"a")
    assert not found.same
    found.update(b"b")
    assert found.same


@pytest.mark.parametrize("text", ["", "crc:1", "0" * 64])
def test_unknown_algorithms(text: str) -> None:
    with pytest.raises(KeyError):
        digests.Comparing(text)
