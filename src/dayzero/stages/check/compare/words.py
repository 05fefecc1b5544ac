"""A comparison for the terminal, and what `dayzero check compare --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from dayzero.schema.comparison import Comparison, LogitsAgreement, PlaceDistance, RouterAgreement, Side
from dayzero.stages.check.measure import FAR

_WORST, _TOLD, _TOKENS = 12, 20, 5


def to_contract(found: Comparison) -> dict[str, Any]:
    """{passed, checks, first_divergence, pattern, suspicion} and the rest of the comparison."""
    first = found.first_divergence
    rest = msgspec.to_builtins(found)
    return {
        "passed": found.passed, "checks": rest.pop("checks"),
        "first_divergence": first and {"layer": first.layer, "module": first.module, "op": first.op,
                                       "place": first.place, "relative_l2": first.relative_l2, "before": first.before},
        "pattern": found.pattern[0].words if found.pattern else None,
        "suspicion": found.suspicion or None, "patterns": rest.pop("pattern"),
        **{key: value for key, value in rest.items() if key not in ("first_divergence", "suspicion")},
    }  # fmt: skip


def overview(found: Comparison) -> RenderableType:
    """Worst places first, then by layer, routers, logits, and what deserves to be known."""
    lines = [*_worst(found), *_by_layer(found.places), *_routers(found.routers), *map(_logits, found.logits),
             *_tokens(found), *_names(found), *_told(found)]
    first = found.first_divergence
    if first is not None:
        lines.append(f"first divergence: {first.place} (module {first.module}, {first.op}): relative L2 "
                     f"{first.relative_l2:.3g}, {first.before:.3g} just before")
    if found.suspicion:
        lines.append(f"suspicion: {found.suspicion}")
    if found.weights:
        same = sum(each.same for each in found.weights)
        lines.append(f"weights as loaded: {same} of {len(found.weights)} matrices are the reference's")
    done = sum(check.passed for check in found.checks)
    others = ", ".join(f"{name}: {'pass' if passed else 'FAIL'}" for name, passed in found.others.items())
    lines += [f"judged by each way: {others}",
              f"{done} of {len(found.checks)} checks pass, {len(found.places)} of the reference's {found.recorded} "
              f"places compared, judged by {found.judge}: {'PASS' if found.passed else 'FAIL'}"]
    return Group(*(Text(line) for line in lines))


def share(place: PlaceDistance) -> float:
    """How much of its tolerance a place uses, by the worst of its distances."""
    if place.lost:
        return FAR
    pairs = ((place.relative_l2, place.tolerance), (place.row, place.row_tolerance),
             (place.channel, place.channel_tolerance), (place.scale, place.scale_tolerance))
    return max(value / limit if limit else FAR * bool(value) for value, limit in pairs)


def _worst(found: Comparison) -> list[str]:
    """Two lines for each place: no terminal is wide enough for a name and its figures."""
    lines = [f"{_side(found.b)} against {_side(found.a)}",
             "nearest to their tolerance or out of it (ULP: median/99th percentile/largest):"]
    for place in sorted(found.places, key=share, reverse=True)[:_WORST]:
        kept = "" if place.kept == "whole" else f" ({place.kept})"
        row, channel = (f"{value:.3g} of {limit:.3g}" for value, limit in (
            (place.row, place.row_tolerance), (place.channel, place.channel_tolerance)))
        lines += [f"{'    ' if place.passed else 'OUT '}{place.name}{kept}",
                  f"      rel. L2 {place.relative_l2:.3g} of {place.tolerance:.3g} (usual {place.limit:g}), row {row}, "
                  f"channel {channel}, max abs {place.max_abs:.3g}, ULP {'/'.join(map(str, place.ulps))}, "
                  f"cosine {place.cosine:.6f}"]
    return lines


def _by_layer(places: Sequence[PlaceDistance]) -> list[str]:
    """One line for each: in a table names would be cut."""
    layers: dict[int | None, list[PlaceDistance]] = {}
    for place in places:
        layers.setdefault(place.layer, []).append(place)
    lines = ["by layer, with the place that is nearest to its tolerance:"] if layers else []
    for layer in sorted(layers, key=lambda each: (each is None, each or 0)):
        own = layers[layer]
        worst, out = max(own, key=share), sum(not each.passed for each in own)
        lines += [f"{'OUT ' if out else '    '}{'no layer' if layer is None else f'layer {layer}'}: {len(own)} places, "
                  f"{out} out; {worst.name}",
                  f"      rel. L2 {worst.relative_l2:.3g} of {worst.tolerance:.3g}, noise {worst.noise:.3g}"]
    return lines


def _routers(routers: Sequence[RouterAgreement]) -> list[str]:
    lines = ["routers, with the largest gap of scores that a flip went over:"] if routers else []
    for each in routers:
        gap = "unexplained" if each.margin == FAR else f"{each.margin:.3g}"
        lines += [f"{'    ' if each.passed else 'OUT '}{each.name}",
                  f"      {each.flips} of {each.rows} rows chose other experts, {each.legitimate} of them within "
                  f"noise; {each.overlap:.2%} of the choices are the same; gap {gap} of {each.tolerance:.3g}"]
    return lines


def _logits(each: LogitsAgreement) -> str:
    return (f"{each.name}: the same likeliest token in {each.argmax:.2%} of {each.rows} rows, {each.top:.2%} of the "
            f"{each.k} likeliest, KL mean {each.kl_mean:.3g} and at most {each.kl_max:.3g} nats, margin lost at most "
            f"{each.margin:.3g}")


def _tokens(found: Comparison) -> list[str]:
    """Where other tokens would be chosen: those that are no near-ties first."""
    ties = sum(each.tie for each in found.tokens)
    shown = sorted(found.tokens, key=lambda each: each.tie)[:_TOKENS]
    lines = [f"other likeliest tokens at {len(found.tokens)} positions, {ties} of them near-ties"] if shown else []
    return lines + [f"  sequence {each.sequence}, position {each.position}: {each.a} (leads by {each.a_margin:.3g}) "
                    f"becomes {each.b} (by {each.b_margin:.3g}), {each.lead:.3g} apart in the reference"
                    f"{', a near-tie' if each.tie else ''}" for each in shown]


def _names(found: Comparison) -> list[str]:
    """How names were matched, but for equal paths."""
    ways: dict[str, list[str]] = {}
    for pair in found.map:
        if pair.a != pair.b:
            order = f" as {list(pair.order)} in {pair.groups} groups" if pair.order and pair.groups > 1 else ""
            ways.setdefault(pair.how, []).append(f"{' + '.join(pair.b)} = {' + '.join(pair.a)}{order}")
    lines = [f"names, {how}: {len(pairs)}, such as {pairs[0]}" for how, pairs in ways.items()]
    alone: dict[str, list[str]] = {}
    for name, side in found.alone.items():
        alone.setdefault(side, []).append(name or "the model itself")
    return lines + [f"{side}: {', '.join(names[:_TOLD])}{' ...' if len(names) > _TOLD else ''}"
                    for side, names in alone.items()]


def _told(found: Comparison) -> list[str]:
    noise = ([f"noise from {', '.join(each.folder for each in found.noise)}"] if found.noise else
             ["no correct run was given with --noise: tolerances are estimated"])
    left = [f"{len(found.told) - _TOLD} more in --json"] if len(found.told) > _TOLD else []
    return noise + [f"note: {each}" for each in (*found.told[:_TOLD], *left)]


def _side(side: Side) -> str:
    return f"{side.folder} ({side.release}, {side.dtype}, {side.engine}, {side.layout})"
