"""Local errors of every place, against local noise: which places are out of what rounding explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dayzero.floats import roundoff
from dayzero.runtime.substitution import Call, Computed, Perturbation, Place, Recorded, Runner
from dayzero.schema.located import Errors, PlaceError

from .errors import Tally, largest, sets

Array = NDArray[Any]
FACTOR = 2.0
"""Another implementation rounds in other places: its errors are other ones of the same size."""
_F32_SUMS = 64.0
"""In f32 what differs is the order of sums: roundoffs of this many (sqrt of 4096 terms, Higham and Mary 2019)."""
_SEEDS = (1, 2)
_ROUTER_SEEDS = 16
_ROUTER_FACTOR = 4.0
_INDICES = "indices"
_SCHEMES = {"torch.bfloat16": "bf16", "torch.float16": "f16", "torch.float32": "f32"}


@dataclass
class Judged:
    """All places of a run."""

    places: list[PlaceError]
    by: dict[Place, Call]
    keys: list[Place]
    """In the order of `places`."""
    others: dict[str, str]
    computed: dict[int, Computed] = field(default_factory=dict)
    """By sequence, of the reference; values of guilty places only."""


@dataclass
class _Found:
    """What is gathered of one place."""

    by: Call
    error: Tally = field(default_factory=Tally)
    noise: list[Tally] = field(default_factory=list)
    precision: str = ""
    """In which the reference of the run's precision gives it: a router may compute in f32 whatever the rest does."""


def judge(runner: Runner, recorded: Recorded, trusted: Sequence[Recorded] = ()) -> Judged:
    """Run the reference over every sequence. `trusted`: runs that are known to be right, whose local errors are noise
    too."""
    found: dict[Place, _Found] = {}
    others: dict[str, str] = {}
    computed: dict[int, Computed] = {}
    for sequence in recorded.sequences:
        made = runner.run(recorded, sequence)
        noisy = [runner.run(recorded, sequence, perturbation=Perturbation(_moved(recorded.precision), seed))
                 for seed in _SEEDS]
        if (coarse := runner.coarse(recorded, sequence)) is not None:
            noisy.append(coarse)
        _gather_others(found, recorded, sequence, made)
        _gather(found, runner, recorded, sequence, made, noisy)
        others |= {f"{place.name} {place.what} {place.slot}": why for place, why in made.others.items()}
        computed[sequence] = made
    for other in trusted:
        _trust(found, runner, other)
    order = {place: number for each in computed.values() for number, place in enumerate(each.by)}
    keys = sorted(found, key=lambda place: order[place])
    places = [_place(number, place, found[place], found[place].precision or recorded.precision)
              for number, place in enumerate(keys)]
    guilty = {place for place, each in zip(keys, places, strict=True) if each.guilty}
    for each in computed.values():
        each.values = {place: value for place, value in each.values.items() if place in guilty}
    return Judged(places, {place: each.by for place, each in found.items()}, keys, others, computed)


def _moved(precision: str) -> float:
    """By how much values are perturbed: a roundoff; in f32 as much as sums in another order move them."""
    return roundoff(precision) * (_F32_SUMS / 4 if precision == "f32" else 1.0)


def _gather(found: dict[Place, _Found], runner: Runner, recorded: Recorded, sequence: int, made: Computed,
            noisy: list[Computed]) -> None:
    for place, value in made.values.items():
        held = recorded.held(place, sequence)
        if held is None or not made.by[place].name.startswith(runner.truth.name):
            continue  # the second: of a layer that runs alone, what it is given is not computed here
        one = found.setdefault(place, _Found(by=made.by[place]))
        reference = _numpy(value)
        values = held.values.reshape(reference.shape)
        if reference.dtype.kind != "f":
            odd = _other_sets(place, values, reference) & held.known
            if odd.any() and _chooses(place, made):
                odd &= ~_unstable(runner, recorded, sequence, made, place, noisy)
            one.error.flips += int(odd.sum())
            continue
        chosen, theirs = _chosen(made, place), recorded.held(place._replace(slot=_INDICES), sequence)
        one.error.add(*_same_choice(place, values, reference, None if theirs is None else theirs.values, chosen,
                                    held.known))
        runs = [each for each in noisy if place in each.values]
        coarse = runs[-1].values[place] if runs and recorded.precision != "f32" else None
        one.precision = _SCHEMES.get(str(coarse.dtype), "f32") if coarse is not None else recorded.precision
        if one.precision != recorded.precision:
            runs = runs[-1:]  # what is given is known to the last bit: it is not to be perturbed
        one.noise += [Tally() for _ in range(len(runs) - len(one.noise))]
        for tally, run in zip(one.noise, runs, strict=False):
            tally.add(*_same_choice(place, _numpy(run.values[place]), reference, _chosen(run, place), chosen,
                                    held.known))


def _gather_others(found: dict[Place, _Found], recorded: Recorded, sequence: int, made: Computed) -> None:
    """What chooses another number is wrong in every row; other sizes may be a matter of form."""
    for place in made.others:
        held = recorded.held(place, sequence) if _chooses(place, made) else None
        if held is not None and held.values.dtype.kind == "i":
            found.setdefault(place, _Found(by=made.by[place])).error.flips += int(held.known.sum())


def _chooses(place: Place, made: Computed) -> bool:
    """Whether integers there are what the module itself chooses: experts, or positions that are attended to."""
    return (place.slot == _INDICES or place.what == "output") and made.by[place].name == place.name


def _chosen(made: Computed, place: Place) -> Array | None:
    """[rows, top k] of the router's call that the place is of."""
    indices = made.values.get(place._replace(slot=_INDICES))
    return None if indices is None else _numpy(indices)


def _same_choice(place: Place, values: Array, reference: Array, theirs: Array | None, ours: Array | None, known: Array
                 ) -> tuple[Array, Array]:
    """Rows of both that are known; of a router's weights, those in which both chose the same experts, in the order of
    the experts: another choice is no rounding error of a weight."""
    if place.slot != "weights" or theirs is None or ours is None or theirs.size != values.size:
        return values[known], reference[known]
    theirs, ours = theirs.reshape(values.shape), ours.reshape(values.shape)
    same = known & ~_other_sets(place, theirs, ours)
    x, r = (np.take_along_axis(each, np.argsort(order, axis=-1, kind="stable"), -1)
            for each, order in ((values, theirs), (reference, ours)))
    return x[same], r[same]


def _other_sets(place: Place, values: Array, reference: Array) -> Array:
    """[rows]: whether a row has other members."""
    return np.asarray((sets(place, values) != sets(place, reference)).any(1))


def _unstable(runner: Runner, recorded: Recorded, sequence: int, made: Computed, place: Place,
              noisy: list[Computed]) -> Array:
    """[rows]: whether roundoffs make the router choose otherwise."""
    reference = _numpy(made.values[place])
    unstable = np.zeros(len(reference), dtype=bool)
    for run in noisy:
        if place in run.values:
            unstable |= _other_sets(place, _numpy(run.values[place]), reference)
    moved = _ROUTER_FACTOR * _of_scores(recorded, sequence, made, place, noisy)
    for seed in range(_ROUTER_SEEDS):
        again = runner.again(recorded, sequence, made, place, Perturbation(moved, seed))
        if again is not None:
            unstable |= _other_sets(place, _numpy(again), reference)
    return unstable


def _of_scores(recorded: Recorded, sequence: int, made: Computed, place: Place, noisy: list[Computed]) -> float:
    """Relative error that the scores of a router's call may have: what those of the run have, or of the reference in
    its precision; a roundoff where they were not recorded."""
    scores = place._replace(slot="scores")
    held, most = recorded.held(scores, sequence), _moved(recorded.precision)
    if held is None or scores not in made.values:
        return most
    reference = _numpy(made.values[scores])
    tallies = [Tally() for _ in range(2)]
    tallies[0].add(held.values.reshape(reference.shape)[held.known], reference[held.known])
    if recorded.precision != "f32" and noisy and scores in noisy[-1].values:
        tallies[1].add(_numpy(noisy[-1].values[scores]), reference)
    return min(most, max(roundoff("f32"), *(each.errors.overall for each in tallies)))


def _trust(found: dict[Place, _Found], runner: Runner, other: Recorded) -> None:
    """Local errors of a right run are noise."""
    more: dict[Place, _Found] = {}
    for sequence in other.sequences:
        _gather(more, runner, other, sequence, runner.run(other, sequence), [])
    for place, each in more.items():
        if place in found:
            found[place].noise.append(each.error)


def _place(number: int, place: Place, found: _Found, precision: str) -> PlaceError:
    error, noise = found.error.errors, largest([each.errors for each in found.noise])
    tolerance = tolerances(noise, precision)
    guilty = any(getattr(error, name) > getattr(tolerance, name) for name in Errors.__struct_fields__)
    return PlaceError(module=found.by.name, name=place.name, what=place.what, slot=place.slot, call=place.call,
                      order=number, error=error, noise=noise, tolerance=tolerance, guilty=guilty)


def tolerances(noise: Errors, precision: str) -> Errors:
    """What passes: a factor times the noise, and never less than a roundoff of the precision allows."""
    floor = roundoff(precision) * (_F32_SUMS if precision == "f32" else 1.0)
    return Errors(overall=max(FACTOR * noise.overall, floor), row=max(FACTOR * noise.row, 2 * floor),
                  channel=max(FACTOR * noise.channel, 2 * floor), scale=max(4 * noise.scale, floor / 4),
                  flips=0)


def _numpy(value: Any) -> Array:
    """f32, or int64."""
    plain = value.detach()
    return np.asarray(plain.float().numpy() if plain.is_floating_point() else plain.long().numpy())
