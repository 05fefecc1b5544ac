"""RunRecord: what happened when the release really ran."""

from __future__ import annotations

import msgspec

from .base import Noun
from .layout import Layout
from .sampling import Sampling
from .tiers import TierRecord, TierTotal


class Output(Noun, frozen=True, kw_only=True):
    """One generated text."""

    prompt: str
    """The prompt, before the chat template."""
    tokens: tuple[int, ...]
    """Generated token ids, without the prompt."""
    text: str
    """The same, decoded."""
    finish: str
    """stop (end token) or length."""
    margins: tuple[float, ...] = ()
    """For each generated token: how far its logit was above the runner-up's."""


class RankRecord(Noun, frozen=True, kw_only=True):
    """One rank's share of a run."""

    rank: int
    """Global rank."""
    device: str
    """Device that it ran on."""
    layers: tuple[int, ...]
    """Layers that it holds."""
    parameters: int
    """Parameter elements that it holds."""
    weight_bytes: int
    """Bytes of them."""
    peak_private_bytes: int
    """Most memory that belonged to its process alone, from start to end of generation."""
    base_private_bytes: int
    """The same before a weight was loaded."""
    load_seconds: float
    """Loading the weights."""
    exit_code: int | None
    """Exit code of the process; teardown can fail after all work is done. None: it was taken down, or had not ended."""
    tiers: TierRecord | None = None
    """What keeping weights in lower tiers cost; None: all were in memory."""


class Overlap(Noun, frozen=True, kw_only=True):
    """How much of one kind of work beside computing lay under computing of the same rank, summed over the ranks."""

    category: str
    """load, offload or collective."""
    seconds: float
    """In which at least one of its spans was going on."""
    hidden_s: float
    """Of these: in which the rank also computed."""
    nbytes: int
    """Bytes that were moved."""

    @property
    def share(self) -> float:
        """The hidden share, 0 to 1."""
        return self.hidden_s / self.seconds if self.seconds else 0.0


class Lost(Noun, frozen=True, kw_only=True):
    """Ranks that were lost while a layout ran, and what it took to go on."""

    epoch: int
    """Counts the sets of processes that held the places, from 1: the one that ended."""
    ranks: tuple[int, ...]
    """Who was lost; empty: nobody, but they could not go on together."""
    reason: str
    """What happened, in words."""
    layout: Layout
    """Of those that went on."""
    taken_over: bool
    """Whether spares took the places; else there are fewer ranks."""
    read_bytes: int = 0
    """Weights that were read for it."""
    settled_s: float = 0.0
    """Seconds from noticing to when the others had left their groups."""
    joined_s: float = 0.0
    """To when all held their places again, from noticing."""
    token_s: float = 0.0
    """To the next token, from noticing."""

    @property
    def told(self) -> str:
        """All of it in one line."""
        how = "its place was taken over" if len(self.ranks) == 1 else "their places were taken over"
        then = how if self.taken_over else f"the others went on with {self.layout.text}"
        took = self.token_s or self.joined_s
        return f"{self.reason}: {then}, {took:.1f} s until it went on"


class LayoutRun(Noun, frozen=True, kw_only=True):
    """One layout that was run."""

    layout: Layout
    """The degrees."""
    world_size: int
    """Processes."""
    dtype: str
    """dtype of the weights, such as bf16."""
    seed: int
    """Seed of everything random."""
    ranks: tuple[RankRecord, ...]
    """One for each rank, in order."""
    outputs: tuple[Output, ...]
    """In the order of the prompts."""
    ttft_s: float
    """Median time from the start of a prompt to its first token."""
    tpot_s: float
    """Median time of a decode step."""
    tpot_all_s: tuple[float, ...]
    """All decode steps, of all ranks that generate, in seconds."""
    tokens_per_s: float
    """Generated tokens a second over all replicas, decode steps only."""
    repeat_identical: bool | None
    """Whether a second run with the same seed gave the same bits (tokens and logits); None: there was none."""
    dump: str
    """Folder, inside the run directory, that holds this run's dumps for `check`; empty: none."""
    kept: dict[str, str] = {}
    """SHA-256 of each file that `check` reads, by its path beside `dump`; empty: not recorded."""
    prompt_tokens: tuple[int, ...] = ()
    """Tokens of each prompt, with the chat template; empty: not recorded."""
    events: tuple[str, ...] = ()
    """What deserves to be known: warnings, retries, odd exits."""
    tiers: TierTotal | None = None
    """What keeping weights in lower tiers cost, all ranks together; None: all were in memory."""
    overlap: tuple[Overlap, ...] = ()
    """What loads, offload traffic and collectives took, and how much of it was hidden; empty: not recorded."""
    timeline: str = ""
    """The Chrome/Perfetto trace of all ranks, inside the run directory; empty: none."""
    losses: tuple[Lost, ...] = ()
    """Ranks that were lost on the way."""
    sampling: Sampling = Sampling()
    """How tokens were chosen."""


class RunRecord(Noun, frozen=True, kw_only=True):
    """All layouts that were run."""

    runs: tuple[LayoutRun, ...]
    """In the order of the plan."""
    prompts: tuple[str, ...]
    """The fixed prompts."""
    max_new_tokens: int
    """Tokens asked for each."""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """Versions and machine facts that the figures depend on."""
