"""A sentence hidden in a long text at several depths, and whether the model finds it again. No torch."""

from __future__ import annotations

import random
from collections.abc import Iterator

from dayzero.data.evaluation import bundled_texts
from dayzero.schema.evaluation import TaskScores

from .scorer import Asked, Scorer

DEPTHS = (0.05, 0.35, 0.65, 0.95)
"""Shares of the text that come before the sentence."""
FIRST, TIMES = 128, 2
"""Shortest text, in words, and how many times as long the next one is: at any length something can end."""
PLACES = ("Lisbon", "Oslo", "Vienna", "Athens")


def needle(scorer: Scorer, longest: int) -> list[TaskScores]:
    """Texts of up to `longest` words; each asks for one of four numbers, all of which were hidden, each with its
    place: only who looks there knows which one it was."""
    items = list(_items(longest))
    told = scorer.score([Asked(context, f" {number}.") for _, context, numbers in items for number in numbers])
    found = {name: float(max(range(4), key=lambda at: told[4 * row + at].logprob) == 0)
             for row, (name, _, _) in enumerate(items)}
    return [TaskScores(task="needle", metric="found", scale="share", better="higher", items=found, count=len(found))]


def _items(longest: int) -> Iterator[tuple[str, str, list[int]]]:
    """(name, text and question, the numbers with the right one first)."""
    draw, length = random.Random(7), FIRST
    words = [word for text in bundled_texts().values() if text.isascii() for word in text.split()]
    while length <= longest:
        for depth in DEPTHS:
            numbers = draw.sample(range(10000, 99999), 4)
            places = draw.sample(PLACES, 4)
            start = draw.randrange(len(words))
            filler = [words[(start + at) % len(words)] for at in range(length)]
            at = round(depth * length)
            hidden = [f"The secret number of {place} is {number}."
                      for place, number in zip(places, numbers, strict=True)]
            others = [draw.randrange(length) for _ in hidden[1:]]
            for place, sentence in sorted([(at, hidden[0]), *zip(others, hidden[1:], strict=True)], reverse=True):
                filler.insert(place, f"\n{sentence}\n")
            question = f"{' '.join(filler)}\nThe secret number of {places[0]} is"
            yield f"{length} words, depth {depth:g}", question, numbers
        length *= TIMES
