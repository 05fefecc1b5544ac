"""Distances and their tolerances as checks."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from dayzero.schema import Check
from dayzero.schema.comparison import LogitsAgreement, PlaceDistance, RouterAgreement
from dayzero.stages.check.measure import FAR, judged

from .flipped import Decisions, Flipped
from .logits import TOP
from .measuring import Measured
from .metrics import Distance
from .places import layer_of
from .tolerances import FLOORS, TOUCHED, TOUCHED_ROWS, Noise, flips_tolerance, gap_tolerance, share_tolerance

_KL = 1e-6
"""Nats that the roundoff of a softmax in single precision may make."""
CONSTANT, COSINE = 1e-2, 0.99
"""How other tools judge: relative L2 of every place, cosine of every place."""


def place_distances(measured: Sequence[Measured], noise: Noise) -> list[PlaceDistance]:
    """Of every place that was compared."""
    made = []
    for each in measured:
        if each.seen is None:
            continue
        tolerance, (clean, touched, flipped) = noise.tolerance(each), each.seen[:3]
        lost = clean.lost + touched.lost
        beside = max(tolerance.typical, TOUCHED * flipped.relative_l2)
        passed = (clean.relative_l2 <= tolerance.relative_l2 and clean.row <= tolerance.row and not lost
                  and clean.channel <= tolerance.channel and clean.scale <= tolerance.scale
                  and (touched.rows < TOUCHED_ROWS or touched.typical <= beside))
        made.append(PlaceDistance(
            name=each.address.label, module=each.address.name, kind=each.kind, layer=layer_of(each.address.name),
            what=each.address.what, order=each.order, kept=each.kept, rows=clean.rows, relative_l2=clean.relative_l2,
            max_abs=clean.max_abs, cosine=clean.cosine, ulps=clean.ulps, lost=lost, row=clean.row,
            row_tolerance=tolerance.row, channel=clean.channel, channel_tolerance=tolerance.channel,
            scale=clean.scale, scale_tolerance=tolerance.scale, touched_rows=touched.rows,
            touched=touched.typical, touched_tolerance=beside,
            flipped_rows=flipped.rows, flipped_l2=flipped.relative_l2,
            noise=tolerance.noise, tolerance=tolerance.relative_l2, source=tolerance.source,
            limit=FLOORS[noise.dtype], passed=passed))
    return made


def place_checks(place: PlaceDistance) -> list[Check]:
    """Of all values, of the worst row and of the worst channel."""
    detail = f"largest difference {place.max_abs:.3g}, cosine {place.cosine:.6f}, usual limit {place.limit:g}"
    if place.lost:
        detail += f", NaN or infinite in one only: {place.lost}"
    made = [judged(f"{place.name}, relative L2", place.relative_l2, place.tolerance, place.source, detail)]
    if place.kept != "statistics":
        made += [judged(f"{place.name}, worst row", place.row, place.row_tolerance, place.source),
                 judged(f"{place.name}, worst channel", place.channel, place.channel_tolerance, place.source),
                 judged(f"{place.name}, common factor", place.scale, place.scale_tolerance, place.source)]
    if place.touched_rows >= TOUCHED_ROWS:
        made.append(judged(f"{place.name}, median row of those that attend to a flipped one", place.touched,
                           place.touched_tolerance, place.source))
    return made


def router_agreements(candidate: Flipped, runs: Sequence[Flipped], noise: Noise) -> list[RouterAgreement]:
    """Every router of the candidate, with the gap that flips of correct runs explain."""
    made = []
    for each in candidate.decisions:
        others = [(other, scale) for scale, run in zip(noise.scales, runs, strict=False)
                  for other in run.decisions if other.router == each.router]
        if each.router.scores is None or (each.rows and not each.rms):
            made.append(_by_share(each, [(1 - other.overlap) * scale for other, scale in others if other.rows]))
            continue
        moved = [other.moved * scale for other, scale in others if other.rows and np.isfinite(other.moved)]
        tolerance, source = gap_tolerance(moved, noise.dtype, each.rms, layer_of(each.router.name))
        fair, worst = int((each.gap <= tolerance).sum()), float(each.gap.max(initial=0.0))
        rates = [len(other.gap) / other.rows * scale for other, scale in others if other.rows]
        made.append(_agreement(each, fair, worst, tolerance, source, flips_tolerance(rates, each.rows)))
    return made


def _by_share(each: Decisions, noise: Sequence[float]) -> RouterAgreement:
    """Without scores there are no margins: what correct runs choose otherwise is the measure."""
    tolerance, source = share_tolerance(noise)
    share = 1 - each.overlap
    return _agreement(each, len(each.gap) if share <= tolerance else 0, share, tolerance, source)


def _agreement(each: Decisions, fair: int, worst: float, tolerance: float, source: str, most: int | None = None
               ) -> RouterAgreement:
    most = each.rows if most is None else most
    return RouterAgreement(
        name=each.router.name, layer=layer_of(each.router.name), order=each.router.order, rows=each.rows,
        flips=len(each.gap), legitimate=fair, overlap=each.overlap, margin=worst if np.isfinite(worst) else FAR,
        tolerance=tolerance, source=source, flips_tolerance=most,
        passed=fair == len(each.gap) and len(each.gap) <= most)


def router_checks(router: RouterAgreement) -> list[Check]:
    """That every flip is one that noise explains, and that there are not many more than in correct runs."""
    detail = (f"{router.flips} of {router.rows} rows chose other experts, {router.legitimate} of them within the noise "
              f"of the scores; {router.overlap:.4f} of the choices are the same")
    return [judged(f"{router.name} router, largest gap of a flip, or share of other choices", router.margin,
                   router.tolerance, router.source, detail),
            judged(f"{router.name} router, rows that flip", float(router.flips), float(router.flips_tolerance),
                   "some times the rows that flip in correct runs", detail)]


def logits_agreements(measured: Sequence[Measured], noise: Noise) -> list[LogitsAgreement]:
    """Of all logits that were compared whole."""
    made = []
    for each in measured:
        if each.seen is not None and each.seen.choices.rows:
            seen, lead = each.seen.choices, 2 * largest_change(each, noise)
            made.append(LogitsAgreement(
                name=each.address.label, rows=seen.rows, argmax=seen.same / seen.rows, top=seen.top / seen.rows, k=TOP,
                kl_mean=finite(seen.kl / seen.rows), kl_max=finite(seen.kl_max), margin=finite(seen.margin),
                lead=finite(lead), ties=int((seen.margins <= lead).sum())))
    return made


def largest_change(each: Measured, noise: Noise) -> float:
    """Of a logit, by what the tolerance of a row explains and by what correct runs show. A likeliest token may be lost
    where its lead is no more than twice that."""
    assert each.seen is not None
    others = [one for one in each.noise if one is not None and one.clean_choices.rows]
    return max([4 * noise.tolerance(each).row * each.seen.clean.rms, *(4 * one.clean.max_abs for one in others)])


def logits_checks(measured: Sequence[Measured], noise: Noise) -> list[Check]:
    """Margins that were lost and divergences, against what the tolerance of the logits explains.

    For small differences d of logits, KL = Var(d) / 2 under the reference's distribution (second order of its
    expansion), and no row's variance is more than its largest |d|^2.
    """
    made = []
    for each in measured:
        if each.seen is None or not each.seen.clean_choices.rows:
            continue
        own, largest = each.seen.clean_choices, largest_change(each, noise)
        source = f"from the tolerance of a row of these logits, {noise.tolerance(each).row:.2g}, and their size"
        made += [judged(f"{each.address.label}, margin of lost likeliest tokens", own.margin, 2 * largest, source,
                        f"{own.same} of {own.rows} rows have the same likeliest token"),
                 judged(f"{each.address.label}, largest KL of a row", own.kl_max, max(largest**2 / 2, _KL), source,
                        f"mean {own.kl / own.rows:.3g} nats")]
    return made


def by_others(measured: Sequence[Measured]) -> tuple[list[Check], list[Check]]:
    """The same places judged by a constant relative L2 and by the cosine, over all rows alike: flips are not known."""
    constant, cosine = [], []
    for each in measured:
        if each.seen is None or each.kept == "statistics":
            continue
        whole = _together(each.seen[:3])
        constant.append(judged(f"{each.address.label}, relative L2", whole[0], CONSTANT, "constant"))
        cosine.append(judged(f"{each.address.label}, 1 - cosine", 1 - whole[1], 1 - COSINE, "constant"))
    return constant, cosine


def _together(groups: Sequence[Distance]) -> tuple[float, float]:
    """(relative L2, cosine) over all groups of rows."""
    if any(each.relative_l2 == FAR for each in groups):
        return FAR, 0.0
    truth = sum(each.rms**2 * each.values for each in groups)
    gap = sum((each.relative_l2 * each.rms) ** 2 * each.values for each in groups)
    own = sum(each.own for each in groups)
    across = sum(each.cosine * sqrt(each.own) * each.rms * sqrt(each.values) for each in groups)
    return (sqrt(gap / truth) if truth else 0.0), (across / sqrt(own * truth) if own and truth else 1.0)


def finite(value: float) -> float:
    """FAR where it is no number."""
    return value if np.isfinite(value) else FAR
