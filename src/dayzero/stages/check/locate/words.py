"""A location for the terminal, and what `dayzero check locate --json` prints."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dayzero.schema.located import Located, Location, PlaceError

from .errors import FAR

_SHOWN = 12
_LEFT = 3


def to_contract(location: Location) -> dict[str, Any]:
    """{passed, first_divergence, pattern, suspicion, located, places, not_compared, reference}"""
    first = location.first
    cause = first.cause if first else None
    return {
        "passed": location.passed,
        "first_divergence": first and {"layer": first.layer, "module": first.module, "op": first.op,
                                       "place": _named(first.place)},
        "pattern": first.patterns[0].words if first and first.patterns else None,
        "suspicion": cause and {"words": cause.words, "explained": cause.explained, "name": cause.name},
        "rounded": [{"words": each.words, "how": each.how, "modules": each.modules, "of": each.of,
                     "errors": [each.smallest, each.largest]} for each in location.rounded],
        "beside_rounding": _beside(location) or None,
        "located": [_located(each) for each in location.located],
        "places": [{"module": each.module, "place": _named(each), "error": each.error.overall,
                    "noise": each.noise.overall, "tolerance": each.tolerance.overall, "guilty": each.guilty}
                   for each in location.places],
        "not_compared": location.not_compared, "reference": location.reference,
    }  # fmt: skip


def _located(each: Located) -> dict[str, Any]:
    return {"layer": each.layer, "module": each.module, "op": each.op, "place": _named(each.place),
            "error": each.place.error, "noise": each.place.noise, "tolerance": each.place.tolerance,
            "patterns": list(each.patterns), "causes": list(each.causes), "nearest": list(each.nearest),
            "tried": each.tried, "cut_short": each.cut_short}


def overview(location: Location) -> RenderableType:
    """Guilty places, and for those that were looked into what they look like and what explains them."""
    guilty = location.guilty
    lines: list[RenderableType] = [Text(f"against {location.reference}")]
    lines += [Text(each.words) for each in location.rounded]
    lines += [Text(beside)] if (beside := _beside(location)) else []
    if guilty:
        table = Table("module", "seen at", "own error", "own noise", "tolerance", "by")
        for each in guilty[:_SHOWN]:
            table.add_row(each.module or "the model", _named(each), *_figures(each))
        lines.append(table)
        if len(guilty) > _SHOWN:
            lines.append(Text(f"{len(guilty) - _SHOWN} more places are out of tolerance"))
    for found in location.located:
        lines += [Text(line) for line in _told(found)]
    left = list(location.not_compared.items())
    lines += [Text(f"not compared: {name} ({why})") for name, why in left[:_LEFT]]
    if len(left) > _LEFT:
        lines.append(Text(f"not compared: {len(left) - _LEFT} more"))
    lines.append(Text(f"{len(location.places) - len(guilty)} of {len(location.places)} places compute what the "
                      "reference computes of what they were given"))
    return Group(*lines)


def _beside(location: Location) -> str:
    """What is wrong beside weights that are rounded in a known way; empty without such."""
    if not any(each.how for each in location.rounded):
        return ""
    if not location.guilty:
        return "nothing is wrong beside that: given weights rounded so, the reference computes the same at every place"
    modules = list(dict.fromkeys(each.module or "the model" for each in location.guilty))
    more = f" and {len(modules) - _LEFT} more" if len(modules) > _LEFT else ""
    return f"beside that, and more than noise of quantised weights: {', '.join(modules[:_LEFT])}{more}"


def _told(found: Located) -> list[str]:
    layer = "" if found.layer is None else f"layer {found.layer}, "
    lines = [f"{layer}{found.module or 'the model'}: {found.op or 'no operator'}, seen at {_named(found.place)}"]
    lines += [f"  {cause.words}: explains {cause.explained:.1%}" for cause in found.causes]
    lines += [f"  pattern: {each.words} ({each.explained:.1%} of the error)" for each in found.patterns[:3]]
    if not found.causes:
        lines.append(f"  none of {found.tried} changes that were tried explains it" if found.tried else
                     "  no change was tried")
        lines += [f"  nearest: {cause.words}: explains {cause.explained:.1%}" for cause in found.nearest]
    if found.cut_short:
        lines.append(f"  time ran out: {found.tried} changes were tried, and not all")
    return lines


def _figures(each: PlaceError) -> tuple[str, str, str, str]:
    """Of the measure that is farthest out."""
    if each.error.flips:
        return str(each.error.flips), "0", "0", "rows with other experts"
    names = {"overall": "relative L2", "row": "worst row", "channel": "worst channel", "scale": "common factor"}
    worst = max(names, key=lambda name: _over(getattr(each.error, name), getattr(each.tolerance, name)))
    error, noise, tolerance = (_number(getattr(part, worst)) for part in (each.error, each.noise, each.tolerance))
    return error, noise, tolerance, names[worst]


def _over(error: float, tolerance: float) -> float:
    return error / tolerance if tolerance else FAR


def _number(value: float) -> str:
    return "no number" if value >= FAR else f"{value:.3g}"


def _named(place: PlaceError) -> str:
    call = f", call {place.call}" if place.call else ""
    return f"{place.name or 'the model'} {place.what} {place.slot}{call}"
