"""Whether two dumps can be compared at all, and what is to be known before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dayzero.errors import UsageError
from dayzero.runtime.golden import Dump
from dayzero.schema import Check
from dayzero.schema.comparison import Side
from dayzero.stages.check.measure import judged

from .measuring import ABSENT, Measured

LACKING = 0.25
"""Largest share of the places that a candidate of the same code may lack."""


def side(dump: Dump) -> Side:
    """A dump, for the report."""
    first = dump.ranks[0]
    return Side(folder=str(dump.folder), release=first.origin.release, engine=first.origin.engine,
                dtype=first.origin.dtype, layout=first.layout.text, mode=first.mode)


def differences(a: Dump, b: Dump) -> tuple[str, ...]:
    """What differs and leaves a comparison meaningful. Raises UsageError for a dump without tensors, and for tokens
    that differ."""
    for each in (a, b):
        if all(item.entry.what == "parameter" for item in each.items):
            raise UsageError(f"{each.folder} holds no tensors: the model was not called while it was recorded",
                             "call the model inside of dayzero.record, on the object that was given to it")
    return (*_tokens(a, b), *_origins(a, b))


def lacking_checks(a: Dump, b: Dump, measured: Sequence[Measured]) -> list[Check]:
    """That a candidate of the same code does not lack a large part of the reference's places. None for other code,
    which has some classes of its own; over what the candidate recorded any of: no inputs may be a choice."""
    classes, whats = ({getattr(item.entry, name) for item in b.items} for name in ("module", "what"))
    if not classes <= {item.entry.module for item in a.items}:
        return []
    absent = [each for each in measured if each.reason == ABSENT and each.address.what in whats]
    count = len(absent) + sum(each.seen is not None for each in measured)
    if not count:
        return []
    detail = f"{len(absent)} of {count}" + (f", such as {absent[0].address.label}" if absent else "")
    return [judged("places of the reference that the candidate lacks, share", len(absent) / count, LACKING,
                   "the same code: the candidate has no class of modules of its own", detail)]


def _tokens(a: Dump, b: Dump) -> list[str]:
    """Rows are found by (sequence, position): what was computed for other tokens is another thing."""
    theirs, ours = a.sequences, b.sequences
    both = theirs.keys() & ours.keys()
    if not theirs or not ours:
        whose = a.folder if not theirs else b.folder
        return [f"the tokens of {whose} are not known: that both computed the same is taken on trust"]
    if not both:
        raise UsageError(f"{b.folder} has none of the sequences of {a.folder}", "record both with the same tokens")
    for sequence in sorted(both):
        one, other = theirs[sequence], ours[sequence]
        length = min(len(one), len(other))
        differ = (one[:length] != other[:length]) & (one[:length] >= 0) & (other[:length] >= 0)
        if differ.any():
            at = int(np.flatnonzero(differ)[0])
            raise UsageError(
                f"the dumps are of other tokens: sequence {sequence} has {one[at]} at position {at} in {a.folder} and "
                f"{other[at]} in {b.folder}", "record both with the same tokens")
    lost = len(theirs) - len(both), len(ours) - len(both)
    short = sum(len(theirs[each]) != len(ours[each]) for each in both)
    told = [f"sequences that only {'the reference' if not number else 'the candidate'} has: {count}"
            for number, count in enumerate(lost) if count]
    return told + ([f"sequences of which one has more tokens: {short}; the rest is compared"] if short else [])


def _origins(a: Dump, b: Dump) -> list[str]:
    one, other = a.ranks[0].origin, b.ranks[0].origin
    told = [f"{name} has another digest: {one.digests[name][:12]} and {other.digests[name][:12]}"
            for name in sorted(one.digests.keys() & other.digests.keys()) if one.digests[name] != other.digests[name]]
    if one.release != other.release:
        told.append(f"the reference is {one.release}, the candidate {other.release}")
    if one.dtype != other.dtype:
        told.append(f"the reference is in {one.dtype}, the candidate in {other.dtype}")
    modes = {rank.mode for dump in (a, b) for rank in dump.ranks}
    if "statistics" in modes:
        told.append("of statistics a difference can be seen, and a permutation of values cannot")
    if "sampled" in modes:
        told.append("sampled: rows and columns that both kept are compared, the others are not")
    for which, dump in (("reference", a), ("candidate", b)):
        told += [f"the {which}: {note}" for note in dump.ranks[0].origin.notes]
        if not dump.finished:
            told.append(f"the {which} is not complete: places of what is missing are not compared")
    return told
