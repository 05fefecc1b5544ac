"""Two golden dumps against each other: no model and no torch. What computed them, in which layout, does not matter."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from dayzero.errors import UsageError
from dayzero.progress import SILENT, Progress
from dayzero.runtime.golden import Dump, noise_folders, open_dump
from dayzero.schema import Check
from dayzero.schema.comparison import Comparison, NamePair, PlaceDistance, Side

from .alike import differences, lacking_checks, side
from .assemble import Known, known
from .findings import first_divergence, patterns_at, suspicion
from .flipped import decisions_of, routers_of
from .judging import (
    by_others,
    logits_agreements,
    logits_checks,
    place_checks,
    place_distances,
    router_agreements,
    router_checks,
)
from .logprobs import Spoken, spoken, tells
from .measuring import Measured, Run, measure
from .names import read_map
from .others import Other
from .places import Address, template
from .replicas import disagreements, replica_checks
from .tokens import token_differences
from .tolerances import Noise, doubtful
from .weights import matrices, weight_checks, weight_words
from .words import overview, to_contract

__all__ = ["JUDGES", "compare", "overview", "read_map", "to_contract"]

JUDGES = ("measured", "constant", "cosine")
"""Ways to judge: by tolerances of each place, by a constant relative L2, by the cosine."""
THREADS = 2


def compare(a: Path, b: Path, *, noise: Sequence[Path] = (), names: tuple[NamePair, ...] = (), judge: str = "measured",
            unfinished: bool = False, verify: bool = False, threads: int = THREADS, progress: Progress = SILENT
            ) -> Comparison:
    """Candidate `b` against reference `a`. `noise`: correct runs, beside those that lie in the reference's folder;
    `names`: pairs that are not to be derived; `verify`: check the digest of everything that is read.

    Raises StoreError for a dump that is damaged or not complete, UsageError for two that have nothing in common.
    """
    begun = time.monotonic()
    with ExitStack() as stack:
        reference, *others = (stack.enter_context(open_dump(path, unfinished=unfinished))
                              for path in (a, b, *noise_folders(a), *noise))
        told = [note for other in others for note in differences(reference, other) if other is others[0]]
        told += _verified([reference, others[0]], progress) if verify else []
        base = known(reference)
        runs = [Other(base, known(other), names if other is others[0] else ()) for other in others]
        routers = routers_of(base)
        seen = [Run(run, decisions_of(base, run, routers)) for run in runs]
        measured = list(measure(base, seen, threads=threads, progress=progress))
        said = spoken(reference, others[0], others[1:]) if tells(reference) or tells(others[0]) else None
        if said is None:
            _refuse_nothing(measured, a, b)
        return _compared(base, seen, measured, judge=judge, told=told, begun=begun, said=said,
                         sides=[side(each) for each in (reference, *others)])


def _compared(base: Known, runs: Sequence[Run], measured: Sequence[Measured], *, judge: str,
              told: Sequence[str], begun: float, said: Spoken | None, sides: Sequence[Side]) -> Comparison:
    candidate = runs[0]
    noise = Noise(measured)
    places = place_distances(measured, noise)
    agreements = router_agreements(candidate.flipped, [run.flipped for run in runs[1:]], noise)
    found, shared = disagreements(candidate.other.own, candidate.other.dealt)
    checks = [check for place in places for check in place_checks(place)]
    checks += [check for each in agreements for check in router_checks(each)] + logits_checks(measured, noise)
    checks += said.checks if said else []
    checks += replica_checks(found, shared, _tolerances(candidate.other, base, places))
    weights = matrices(base.dump, candidate.other.own.dump)
    checks += weight_checks(weights)
    constant, cosine = by_others(measured)
    lacking = lacking_checks(base.dump, candidate.other.own.dump, measured)
    judged = {"measured": [*checks, *lacking], "constant": [*constant, *lacking], "cosine": [*cosine, *lacking]}
    first = first_divergence(places, agreements, sides[1].layout)
    patterns = patterns_at(first, measured, places, base, candidate)
    words = suspicion(first, places, patterns)
    if first is None and said is not None:
        first, patterns, words = said.first, said.pattern, said.note
    words = "; ".join(filter(None, (weight_words(weights), words)))
    return Comparison(
        a=sides[0], b=sides[1], noise=tuple(sides[2:]), judge=judge, checks=tuple(judged[judge]), places=tuple(places),
        recorded=len(measured), routers=tuple(agreements), weights=tuple(weights),
        logits=tuple(logits_agreements(measured, noise)),
        tokens=(*token_differences(measured, noise, base.dump.sequences), *(said.tokens if said else ())),
        first_divergence=first, pattern=patterns, suspicion=words,
        map=candidate.other.names.pairs, alone=candidate.other.alone,
        told=(*told, *candidate.other.told, *_unseen(candidate), *_skipped(measured, candidate.other),
              *doubtful(measured, noise, [each.folder for each in sides[2:]])),
        bytes_read=sum(run.other.own.dump.files.nbytes for run in runs) + base.dump.files.nbytes,
        seconds=time.monotonic() - begun,
        others={name: _passed(made) for name, made in judged.items()})


def _unseen(candidate: Run) -> list[str]:
    """That routers were not recorded, and what that costs."""
    router = candidate.flipped.unseen
    return [] if router is None else [
        f"what {router.name} chose is not recorded of the candidate: from there on rows may have taken other experts, "
        "and only the median row of a place is judged"]


def _skipped(measured: Sequence[Measured], other: Other) -> list[str]:
    """Places that were not compared though both have the module, layers of a kind together."""
    found: dict[tuple[str, str], int] = {}
    for each in measured:
        name = template(each.address.name)
        if each.reason and name not in other.alone:
            key = each.address._replace(name=name).label, each.reason
            found[key] = found.get(key, 0) + 1
    return [f"{label}{f' ({count} of them)' if count > 1 else ''}: {why}" for (label, why), count in found.items()]


def _passed(checks: Sequence[Check]) -> bool:
    return bool(checks) and all(check.passed for check in checks)


def _tolerances(other: Other, base: Known, places: Sequence[PlaceDistance]) -> dict[Address, tuple[float, str]]:
    """{candidate's address: (tolerance, where it comes from)}."""
    known_places = {place.name: (place.tolerance, place.source) for place in places}
    found = {}
    for address in other.own.places:
        pair = other.names.pair_of(address.name)
        if pair is not None:
            label = address._replace(name=other.names.theirs(pair, address.name)[0]).label
            if label in known_places:
                found[address] = known_places[label]
    return found


def _verified(dumps: Sequence[Dump], progress: Progress) -> list[str]:
    """Raises StoreError when bytes are not those that were written."""
    count = 0
    for dump in dumps:
        for number, item in enumerate(dump.items):
            progress.update(f"checking digests of {dump.folder.name}", number, len(dump.items))
            dump.verify(item)
            count += item.place is not None
    return [f"the digests of all {count} tensors are those that were written down"]


def _refuse_nothing(measured: Sequence[Measured], a: Path, b: Path) -> None:
    if any(each.seen is not None for each in measured):
        return
    why = next((f"{each.address.label}: {each.reason}" for each in measured if each.reason), "the reference is empty")
    raise UsageError(f"{a} and {b} have nothing that can be compared: {why}",
                     "record both of the same model, or name what belongs together with --map")
