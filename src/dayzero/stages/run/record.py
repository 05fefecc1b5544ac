"""From what the ranks of one launch did to one LayoutRun."""

from __future__ import annotations

from statistics import median

from dayzero.backends import host
from dayzero.runtime.assignment import Assignment, PassResult
from dayzero.runtime.launch import Launched
from dayzero.runtime.mesh import Place
from dayzero.runtime.timeline.shares import together as overlaps
from dayzero.runtime.tokens import Tokens
from dayzero.schema import LayoutRun, Output, Plan, RankRecord
from dayzero.schema.tiers import together


def layout_run(launched: Launched, assignment: Assignment, plan: Plan, prompts: tuple[str, ...], tokens: Tokens, *,
               dump: str, files: dict[str, str], said: str = "") -> LayoutRun:
    """The record of one launch; `dump` is its dump folder inside the run directory, `files` what it left for check,
    `said` what was known before."""
    layout = assignment.layout
    passes = [result.passes[0] for result in launched.ranks]
    speakers = [each for rank, each in enumerate(passes) if Place(layout, rank).speaks and each.outputs]
    steps = [second for each in speakers for second in each.step_s]
    return LayoutRun(
        layout=layout, world_size=layout.world_size, dtype=passes[0].dtype, seed=assignment.seed,
        ranks=tuple(_rank(launched, rank) for rank in range(layout.world_size)),
        outputs=_outputs(speakers, prompts, tokens),
        ttft_s=median(second for each in speakers for second in each.first_token_s),
        tpot_s=median(steps) if steps else 0.0, tpot_all_s=tuple(steps),
        tokens_per_s=sum(sum(each.step_tokens) / sum(each.step_s) for each in speakers if each.step_s),
        repeat_identical=_same_bits([each.digests for each in passes if each.digests]),
        prompt_tokens=tuple(map(len, assignment.prompts)), dump=dump, kept=files,
        tiers=together([each.tiers for each in passes], layout),
        overlap=overlaps([each.overlap for each in passes]),
        events=((said,) if said else ()) + launched.events + _events(passes, plan, assignment) + _plain(tokens))


def _same_bits(digests: list[tuple[str, ...]]) -> bool:
    """Whether every rank that generated did so more than once, always with the same digest."""
    return bool(digests) and all(len(each) > 1 and len(set(each)) == 1 for each in digests)


def environment(launched: Launched) -> dict[str, str]:
    """Versions and machine facts that the figures depend on."""
    return {**launched.ranks[0].environment, "processor": " ".join(host.identity()).strip(),
            "cores": str(host.cores()), "memory figures": "RssAnon + RssShmem of each process, sampled every 10 ms"}


def _rank(launched: Launched, rank: int) -> RankRecord:
    result = launched.ranks[rank]
    first = result.passes[0]
    return RankRecord(
        rank=rank, device=result.device, layers=first.layers, parameters=first.parameters,
        weight_bytes=first.weight_bytes, peak_private_bytes=first.peak_private_bytes,
        base_private_bytes=first.base_private_bytes, load_seconds=first.load_seconds, exit_code=launched.exits[rank],
        tiers=first.tiers)


def _outputs(speakers: list[PassResult], prompts: tuple[str, ...], tokens: Tokens) -> tuple[Output, ...]:
    generated = sorted((output for each in speakers for output in each.outputs), key=lambda output: output.prompt)
    return tuple(Output(prompt=prompts[each.prompt], tokens=each.tokens, text=tokens.decode(each.tokens),
                        finish=each.finish, margins=each.margins) for each in generated)


def _plain(tokens: Tokens) -> tuple[str, ...]:
    """That the chat template was not used."""
    return (f"prompts are not a user's turn: the chat template refuses them ({tokens.plain})",) if tokens.plain else ()


def _events(passes: list[PassResult], plan: Plan, assignment: Assignment) -> tuple[str, ...]:
    """Where memory peaked if not while generating, and stages that are not those of the plan."""
    events = [f"rank {rank} took most memory while {each.peak_during}" for rank, each in enumerate(passes)
              if each.peak_during.startswith("loading")]
    if not any(each.step_s for each in passes):
        events.append("no decode step was timed: every text ended at its first token")
    layout = assignment.layout
    planned = next((each.stages for each in plan.candidates if each.layout == layout), None)
    ran = [passes[stage * layout.tp].layers for stage in range(layout.pp)]
    if planned and [list(range(*each)) for each in planned] != [list(each) for each in ran]:
        held = ", ".join(f"{each[0]}-{each[-1]}" if each else "none" for each in ran)
        events.append(f"stages hold layers {held}; the plan had "
                      + ", ".join(f"{first}-{end - 1}" for first, end in planned))
    return tuple(events)
