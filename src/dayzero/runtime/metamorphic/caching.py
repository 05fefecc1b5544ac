"""Relations between a whole prompt and the same in pieces, at lengths beyond everything that ends at a length."""

from __future__ import annotations

from collections.abc import Iterator

from dayzero.schema.relation import Held

from .subject import Subject

STEPS, CHUNKS = 4, 3
"""Last tokens that are given one by one, and pieces of what comes before."""
SHORT = 29


def caching(subject: Subject, lengths: dict[str, int]) -> Iterator[Held]:
    """For a short prompt, and one beyond each limit. Equal lengths are tried once."""
    for length, names in _by_length(lengths).items():
        ids = subject.tokens(1, length)
        whole = subject.logits(ids)
        beyond = f"{length} tokens, {names}"
        for how, sizes in (("the last tokens one by one from the cache", [length - STEPS] + [1] * STEPS),
                           ("the prompt in pieces", _pieces(length))):
            yield subject.held(f"{beyond}: {how}", subject.pieces(ids, sizes), whole, ids)


def _by_length(lengths: dict[str, int]) -> dict[int, str]:
    found = {SHORT: "below every limit"}
    for name, length in lengths.items():
        found[length] = f"{found[length]} and {name}" if length in found else f"beyond the {name}"
    return found


def _pieces(length: int) -> list[int]:
    """Of unequal size: an even one is a multiple of too much."""
    size = length // CHUNKS
    return [size + 1, size - 1, length - 2 * size] if size > 1 else [length]
