"""Metamorphic tests of a release: what has to hold without any reference. Lengths are chosen from the config."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dayzero.data.keys import keys, stated
from dayzero.errors import NotPossible, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.runtime.assignment import DTYPES, Assignment
from dayzero.runtime.launch import LIMIT, launch
from dayzero.runtime.weights import check_weights
from dayzero.schema import Check, Layout, ModelSpec, Release, Verdict
from dayzero.schema.relation import DRAWN, DRAWN_STEPS, Held, Relations

BEYOND, LONGEST, SHIFT = 11, 640, 3
"""Tokens beyond a limit; longest prompt unless told; positions by which all are moved."""


def relations(release: Release, *, dtype: str = "f32", layout: Layout | None = None, longest: int = LONGEST,
              own: bool = False, seed: int = 0, limit_s: float = LIMIT, progress: Progress = SILENT) -> Verdict:
    """Try them all. Raises NotPossible without weights or when the release cannot be run here, UsageError for a dtype
    that there is not."""
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}", f"choose one of {', '.join(DTYPES)}")
    root = check_weights(release)
    within, left = _lengths(release.model, longest)
    asked = Relations(dtype=dtype, vocabulary=release.model.vocab_size, lengths=within, shift=_shift(release.model),
                      factors=_factors(), groups=_groups(release))
    plain = Assignment(root=str(root), layout=layout or Layout(), passes=(), prompts=(), max_new_tokens=1, batch=1,
                       seed=seed, gradient_rows=0, own=own, relations=asked)
    with tempfile.TemporaryDirectory() as work:
        held = launch(plain, Path(work) / "relations", limit_s=limit_s, progress=progress).ranks[0].held
        checks = [_check(each) for each in held if not each.skipped and not each.tokens]
        if plain.layout.world_size > 1:
            try:
                alone = launch(drawing(plain, Layout()), Path(work) / "alone", limit_s=limit_s, progress=progress)
                checks.append(same_tokens(alone.ranks[0].held, held, plain.layout))
            except NotPossible as reason:
                left[f"{DRAWN}, as in one process"] = reason.reason
    return _verdict(release, checks, {**left, **{each.name: each.skipped for each in held if each.skipped}},
                    plain.layout.text)


def drawn(release: Release, layouts: Sequence[Layout], *, dtype: str = "f32", own: bool = False, seed: int = 0,
          limit_s: float = LIMIT, progress: Progress = SILENT) -> list[Check]:
    """Whether tokens that are drawn with fixed seeds are those of one process, in each of the layouts."""
    asked = Relations(dtype=dtype, vocabulary=release.model.vocab_size, lengths={}, shift=0)
    plain = Assignment(root=str(check_weights(release)), layout=Layout(), passes=(), prompts=(), max_new_tokens=1,
                       batch=1, seed=seed, gradient_rows=0, own=own, relations=asked)
    with tempfile.TemporaryDirectory() as work:
        alone, *others = (launch(drawing(plain, layout), Path(work) / "drawn", limit_s=limit_s, progress=progress)
                          .ranks[0].held for layout in (Layout(), *layouts))
    return [same_tokens(alone, held, layout) for layout, held in zip(layouts, others, strict=True)]


def drawing(plain: Assignment, layout: Layout) -> Assignment:
    """The same in another layout, and nothing but drawn tokens."""
    assert plain.relations is not None
    return msgspec.structs.replace(plain, layout=layout, relations=msgspec.structs.replace(
        plain.relations, only=("sampling",)))


def same_tokens(alone: Sequence[Held], held: Sequence[Held], layout: Layout) -> Check:
    """Up to the first near-tie of a sequence: what follows another token is another text. Raises NotPossible when one
    of them draws nothing."""
    one, other = (next((each for each in seen if each.tokens), None) for seen in (alone, held))
    if one is None or other is None:
        why = next((each.skipped for each in (*alone, *held) if each.skipped), "nothing was drawn")
        raise NotPossible(f"tokens cannot be drawn with {layout.text}: {why}", "see the reason")
    wrong = ties = 0
    for start in range(0, len(one.tokens), DRAWN_STEPS):
        at = next((at for at in range(start, start + DRAWN_STEPS) if one.tokens[at] != other.tokens[at]), None)
        ties += at is not None and one.margins[at] <= one.tolerance
        wrong += at is not None and one.margins[at] > one.tolerance
    return Check(name=f"{layout.text}: {DRAWN}, as in one process", tolerance=0.0, observed=float(wrong),
                 source=f"the same tokens, unless two scores are within {one.tolerance:.2g}", passed=not wrong,
                 detail=f"{len(one.tokens) // DRAWN_STEPS} sequences of {DRAWN_STEPS} tokens; {ties} with a near-tie")


def relation_table(verdict: Verdict) -> RenderableType:
    """One row for each, and what was not tried."""
    table = Table("relation", "observed", "tolerance", "holds", "detail", title=verdict.reference)
    for check in verdict.checks:
        table.add_row(check.name, f"{check.observed:.3g}", f"{check.tolerance:.3g}", "yes" if check.passed else "NO",
                      check.detail)
    left = [Text(f"not tried: {name} ({why})") for name, why in (verdict.not_made | verdict.needless).items()]
    done = sum(check.passed for check in verdict.checks)
    return Group(table, *left, Text(f"{done} of {len(verdict.checks)} relations hold"))


def _check(each: Held) -> Check:
    return Check(name=each.name, tolerance=each.tolerance, source=each.source, observed=each.observed,
                 passed=each.passed, detail=each.detail)


def _verdict(release: Release, checks: Sequence[Check], left: Mapping[str, str], layout: str) -> Verdict:
    return Verdict(checks=tuple(checks), layers=(), first_divergence=None, not_made=dict(left),
                   reference=f"{release.name} with {layout} against itself, asked in another way")


def _lengths(model: ModelSpec, longest: int) -> tuple[dict[str, int], dict[str, str]]:
    """({limit: prompt length beyond it}, {limit: why it is not tried})."""
    limits = dict(_limits(model))
    most = min(longest, model.max_positions or longest)
    within = {name: at + BEYOND for name, at in limits.items() if at + BEYOND <= most}
    left = {f"prompts beyond the {name} of {at} tokens": f"longer than {most}: give --longest {at + BEYOND}"
            if at + BEYOND <= (model.max_positions or at + BEYOND) else "the model takes no longer prompts"
            for name, at in limits.items() if name not in within}
    return within, left


def _limits(model: ModelSpec) -> Iterator[tuple[str, int]]:
    """(what ends or begins at a length, that length)."""
    used = {layer.attention for layer in model.layers}
    for name, attention in model.attentions.items():
        if name in used and attention.window:
            yield f"{'chunk' if attention.chunked else 'window'} of {name} attention", attention.window
        if name in used and attention.index_top_k:
            yield f"choice of {name} attention", attention.index_top_k * attention.merged
    for name, rope in model.ropes.items():
        if rope.original_positions:
            yield f"original length of the positions of {name}", rope.original_positions


def _shift(model: ModelSpec) -> int:
    """0 where no layer rotates, or the config does not say so for all that look at positions."""
    return SHIFT if model.ropes else 0


def _factors() -> tuple[str, ...]:
    """Spellings of keys that are a factor on what routed experts give."""
    return tuple(name for key in keys().keys if key.once and key.neutral == [1.0] and "routed_experts" in key.roles
                 for name in key.names)


def _groups(release: Release) -> int:
    """Groups that routers choose from first; 1 where the config states none."""
    key = next((each for each in keys().keys if "n_group" in each.names), None)
    values = (value for _, _, value in stated(release.config, key.names if key else []))
    return max(1, next((value for value in values if isinstance(value, int)), 1))
