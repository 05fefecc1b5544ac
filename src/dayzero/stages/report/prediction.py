"""The plan's predictions beside what the run measured."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from dayzero.schema import Candidate, Estimate, Layout, LayoutRun, Noun, Plan, RankRecord, Results

MEMORY_TOLERANCE = 0.15
"""Share by which a rank's peak memory may differ from its prediction."""
SPEED_FACTOR = 1.5
"""Factor by which a speed may differ from its prediction, in either direction."""
ALIKE = 0.25
"""Share by which the run's prompts may differ in length from those of the plan before it is said."""


class Prediction(Noun, frozen=True, kw_only=True):
    """One figure that was predicted and measured."""

    name: str
    """What it is: peak memory, decode rate or time to first token."""
    layout: Layout
    """Layout that ran."""
    rank: int | None
    """Rank that it is about; None: the whole run."""
    predicted: float
    """From the plan."""
    low: float
    """Lower end of the prediction's interval."""
    high: float
    """Upper end."""
    measured: float
    """From the run."""
    unit: str
    """B, tokens/s or s."""
    ratio: float
    """measured / predicted."""
    tolerance: str
    """What `ok` means."""
    ok: bool
    """Whether the ratio is within the tolerance."""
    source: str
    """Where the two figures are from."""
    note: str = ""
    """What makes the two hard to compare; empty: nothing."""


def compare(results: Results) -> tuple[Prediction, ...]:
    """Predictions of every layout that was both planned and run; empty when there is none."""
    if results.plan is None or results.record is None:
        return ()
    planned = {candidate.layout: candidate for candidate in results.plan.candidates}
    found: list[Prediction] = []
    for run in results.record.runs:
        candidate = planned.get(run.layout)
        if candidate is not None:
            found += [*_memory(candidate, run), _decode(candidate, run),
                      _first_token(candidate, run, results.plan)]
    return tuple(found)


def unplanned(results: Results) -> tuple[Layout, ...]:
    """Layouts that ran although the plan has no figures for them."""
    if results.record is None:
        return ()
    planned = {candidate.layout for candidate in results.plan.candidates} if results.plan else set()
    return tuple(run.layout for run in results.record.runs if run.layout not in planned)


def _memory(candidate: Candidate, run: LayoutRun) -> Iterator[Prediction]:
    for rank in run.ranks:
        stage = _stage(candidate, rank)
        if stage is None:
            continue
        predicted = sum(candidate.bytes_per_stage[stage].values())
        spread = MEMORY_TOLERANCE * predicted
        estimate = Estimate(value=predicted, low=predicted - spread, high=predicted + spread, unit="B", source="")
        yield _prediction("peak memory", run, rank.rank, estimate, float(rank.peak_private_bytes), (
            "plan: sum of the causes on this rank's stage; run: private memory of the process, highest"))


def _stage(candidate: Candidate, rank: RankRecord) -> int | None:
    """The planned stage that holds the same layers as the rank; None when the run cut the layers otherwise."""
    if len(candidate.stages) == 1:
        return 0
    held = (rank.layers[0], rank.layers[-1] + 1) if rank.layers else None
    return candidate.stages.index(held) if held in candidate.stages else None


def _decode(candidate: Candidate, run: LayoutRun) -> Prediction:
    return _prediction("decode rate", run, None, candidate.tokens_per_s, run.tokens_per_s, (
        f"plan: {candidate.tokens_per_s.source}; run: {len(run.tpot_all_s)} decode steps over all replicas"))


def _first_token(candidate: Candidate, run: LayoutRun, plan: Plan) -> Prediction:
    return _prediction("time to first token", run, None, candidate.ttft_s, run.ttft_s, (
        f"plan: {candidate.ttft_s.source}, for the workload's prompt length; run: median over its own prompts"),
        _lengths(run, plan))


def _lengths(run: LayoutRun, plan: Plan) -> str:
    """Both lengths of a prompt in tokens, when they differ by more than `ALIKE`; the run's is that of its median."""
    planned = plan.workload.get("input_tokens")
    if not run.prompt_tokens or not isinstance(planned, int):
        return ""
    ran = median(run.prompt_tokens)
    if abs(ran - planned) <= ALIKE * planned:
        return ""
    return f"predicted for a prompt of {planned:,} tokens, measured with prompts of {ran:,.0f} (median)"


def _prediction(name: str, run: LayoutRun, rank: int | None, estimate: Estimate, measured: float,
                source: str, note: str = "") -> Prediction:
    ratio = measured / estimate.value if estimate.value else float("inf")
    if estimate.unit == "B":
        ok, tolerance = abs(ratio - 1) <= MEMORY_TOLERANCE, f"within {MEMORY_TOLERANCE:.0%}"
    else:
        ok, tolerance = 1 / SPEED_FACTOR <= ratio <= SPEED_FACTOR, f"factor {SPEED_FACTOR:g}"
    return Prediction(
        name=name, layout=run.layout, rank=rank, predicted=estimate.value, low=estimate.low, high=estimate.high,
        measured=measured, unit=estimate.unit, ratio=ratio, tolerance=tolerance, ok=ok, source=source, note=note)
