"""Positions at which the two would choose other tokens, with the margins of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dayzero.runtime.golden.values import Array
from dayzero.schema.comparison import TokenDifference

from .judging import finite, largest_change
from .measuring import Measured
from .pieces import split_key
from .tolerances import Noise

MOST = 1000
"""Positions that are listed."""


def token_differences(measured: Sequence[Measured], noise: Noise, sequences: Mapping[int, Array]
                      ) -> list[TokenDifference]:
    """Of all logits that were compared whole, those first that run first. `sequences`: the tokens that are known."""
    made: list[TokenDifference] = []
    for each in measured:
        if each.seen is not None and each.kept == "whole" and len(each.seen.choices.different):
            made += _of(each, 2 * largest_change(each, noise), sequences)
    return made[:MOST]


def given(sequences: Mapping[int, Array], sequence: int, position: int) -> int:
    """The token that stands there; -1: none, or not known."""
    tokens = sequences.get(sequence, ())
    return int(tokens[position]) if position < len(tokens) else -1


def _of(each: Measured, lead: float, sequences: Mapping[int, Array]) -> list[TokenDifference]:
    assert each.seen is not None
    rows = each.seen.choices.different[:MOST]
    where = zip(*(index.tolist() for index in split_key(rows["key"])), strict=True)
    return [TokenDifference(
        name=each.address.label, sequence=sequence, position=position + 1,
        given=given(sequences, sequence, position + 1), a=int(row["a"]), a_margin=finite(float(row["a_margin"])),
        b=int(row["b"]), b_margin=finite(float(row["b_margin"])), lead=finite(float(row["lead"])),
        tie=bool(row["lead"] <= lead))
        for (sequence, position), row in zip(where, rows, strict=True)]
