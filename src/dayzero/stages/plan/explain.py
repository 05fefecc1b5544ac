"""A plan in words: why a candidate ranks where it does, tables for the terminal, and the JSON of the contract."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dayzero.schema import Candidate, Estimate, Plan, Rejected, Trained
from dayzero.units import format_bytes, format_seconds

from .training import training_contract, training_table


def explained(candidates: list[Candidate], top: int) -> tuple[Candidate, ...]:
    """The first `top` of the ranked candidates, each with its explanation."""
    fitting = sum(candidate.fits for candidate in candidates)
    return tuple(
        msgspec.structs.replace(candidate, explanation=_why(candidate, candidates[0], place, fitting, len(candidates)))
        for place, candidate in enumerate(candidates[:top], 1))


def _why(candidate: Candidate, best: Candidate, place: int, fitting: int, legal: int) -> str:
    """Two sentences: the rank and its reason, then the room."""
    need, usable = format_bytes(candidate.need_bytes), format_bytes(candidate.usable_bytes)
    if not candidate.fits:
        cause = max(candidate.bytes_per_device, key=lambda name: candidate.bytes_per_device[name])
        return (f"Does not fit: the fullest device needs {need} of {usable}, most of it {cause.replace('_', ' ')}. "
                f"{fitting} of {legal} legal layouts fit.")
    share = candidate.tokens_per_s.value / best.tokens_per_s.value
    behind = "as fast as the first" if share > 0.995 else f"{share:.0%} of the first"
    rank = f"First of {fitting} that fit" if place == 1 else f"Number {place} of {fitting} that fit, {behind}"
    return (f"{rank}: {_rate(candidate.tokens_per_s.value)} tokens/s ({candidate.limits[0]}). "
            f"The fullest device needs {need} of {usable}; {candidate.max_sequences:,} sequences of full length fit.")


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def _candidate_table(candidates: tuple[Candidate, ...]) -> Table:
    table = Table(title="Layouts, best first", title_justify="left", expand=False)
    table.add_column("layout", overflow="fold")
    for heading in ("fits", "memory", "TTFT", "TPOT", "tokens/s"):
        table.add_column(heading, no_wrap=True)
    table.add_column("bound by", overflow="fold")
    for one in candidates:
        rate = one.tokens_per_s
        table.add_row(one.layout.text, "yes" if one.fits else "no", format_bytes(one.need_bytes),
                      format_seconds(one.ttft_s.value), format_seconds(one.tpot_s.value),
                      f"{_rate(rate.value)} ({_rate(rate.low)}-{_rate(rate.high)})",
                      one.limits[0].removeprefix("decode: ").split(",")[0], style="" if one.fits else "dim")
    return table


def by_rule(rejected: tuple[Rejected, ...]) -> dict[tuple[str, str], list[str]]:
    """(rule, message) -> layouts, the most frequent first."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in rejected:
        groups[one.rule, one.message].append(one.layout.text)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def _rejected_table(rejected: tuple[Rejected, ...]) -> Table:
    table = Table(title="Rejected layouts", title_justify="left", expand=False)
    for heading in ("rule", "why", "layouts"):
        table.add_column(heading, overflow="fold")
    for (rule, message), layouts in by_rule(rejected).items():
        more = f" and {len(layouts) - 3} more" if len(layouts) > 3 else ""
        table.add_row(rule, message, "; ".join(layouts[:3]) + more)
    return table


def overview(plan: Plan, shown: int = 10) -> RenderableType:
    """The plan for a terminal: a sentence, the best candidates, the rejected layouts by reason, the notes."""
    best: Candidate | Trained | None = next((one for one in plan.training if one.fits), plan.best)
    verdict = f"{best.layout.text}: {best.explanation}" if best else "Nothing fits on this target."
    nearest: Candidate | Trained | None = next(iter(plan.training), None) or next(iter(plan.candidates), None)
    if not best and nearest:
        verdict += f" Nearest is {nearest.layout.text}. {nearest.explanation}"
    parts: list[RenderableType] = [Text(verdict)]
    if plan.candidates:
        parts.append(_candidate_table(plan.candidates[:shown]))
    if plan.training:
        parts.append(training_table(plan.training[:shown]))
    if plan.rejected:
        parts.append(_rejected_table(plan.rejected))
    parts.append(Text(f"{plan.evaluated} layouts in {format_seconds(plan.seconds)}", style="dim"))
    parts += [Text(f"note: {note}", style="dim") for note in plan.notes]
    return Group(*parts)


def _ends(estimate: Estimate, divisor: int = 1) -> dict[str, float]:
    return {name: getattr(estimate, name) / divisor for name in ("value", "low", "high")}


def to_contract(plan: Plan) -> dict[str, Any]:
    """What `dayzero plan --json` prints. `step_s` is the time of a training step; null when serving."""
    return {
        "plans": [{
            "layout": msgspec.structs.asdict(one.layout), "fits": one.fits, "bytes_per_device": one.bytes_per_device,
            "usable_bytes": one.usable_bytes, "max_sequences": one.max_sequences,
            "ttft_s": _ends(one.ttft_s), "tpot_s": _ends(one.tpot_s),
            "tokens_per_s_per_device": _ends(one.tokens_per_s, one.layout.world_size), "step_s": None,
            "limits": [*one.limits, *plan.notes], "explanation": one.explanation,
        } for one in plan.candidates] + [training_contract(one, plan.notes) for one in plan.training],
        "rejected": [{"layout": msgspec.structs.asdict(one.layout), "rule": one.rule, "message": one.message}
                     for one in plan.rejected],
        "evaluated": plan.evaluated, "seconds": plan.seconds,
    }  # fmt: skip
