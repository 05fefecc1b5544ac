"""RunRecord: what happened when the release really ran."""

from __future__ import annotations

import msgspec

from .base import Noun
from .layout import Layout


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
    """Exit code of the process; teardown can fail after all work is done."""


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
    repeat_identical: bool
    """Whether a second run with the same seed gave the same bits (tokens and logits)."""
    dump: str
    """Folder, inside the run directory, that holds this run's dumps for `check`."""
    kept: dict[str, str] = {}
    """SHA-256 of each file that `check` reads, by its path beside `dump`; empty: not recorded."""
    prompt_tokens: tuple[int, ...] = ()
    """Tokens of each prompt, with the chat template; empty: not recorded."""
    events: tuple[str, ...] = ()
    """What deserves to be known: warnings, retries, odd exits."""


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
