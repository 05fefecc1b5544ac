"""Assignment: what the ranks of one launch have to do; RankResult: what one of them did. Plain data, without torch.

The launcher writes the one as a file, every rank writes the other; nothing else passes between them.
"""

from __future__ import annotations

from math import lcm

from dayzero.schema import Budget, Layout, Noun, Overlap, TierRecord
from dayzero.schema.derivatives import Derivatives, Derived
from dayzero.schema.golden import Mode
from dayzero.schema.relation import Held, Relations

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
"""Schemes that ranks can hold weights in, and the library's names for them."""
BYTES = {"bf16": 2, "f16": 2, "f32": 4}
"""Bytes of one element."""


class Pass(Noun, frozen=True, kw_only=True):
    """Load the weights once in one dtype and do some of: time first tokens, generate, dump, gradients."""

    dtype: str
    """bf16, f16 or f32."""
    generate: int = 0
    """How often to generate all prompts; the figures are of all of them."""
    first_tokens: bool = False
    """Before that, time the first token of each prompt, alone."""
    dump: bool = False
    """Save what each layer puts out for each prompt."""
    gradients: bool = False
    """Save the gradients of the loss of one small batch, if there is memory for them."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.generate or self.first_tokens or self.dump or self.gradients)


class Record(Noun, frozen=True, kw_only=True):
    """A golden dump of all prompts, each alone and whole (docs/check.md)."""

    folder: str = ""
    """Where it goes; ranks write there as they compute."""
    dtype: str = ""
    """bf16, f16 or f32. Of what a user asks for: empty for the release's own, bf16 for a quantised one."""
    modules: tuple[str, ...] = ("default",)
    """default, leaves, all, or patterns of paths or kinds."""
    layers: tuple[int, ...] = ()
    """Layers of the decoder whose modules are recorded; empty: all."""
    mode: Mode = "whole"
    """whole, sampled or statistics."""
    rows: float = 0.25
    """Of a sample: share of the rows."""
    columns: float = 0.25
    """Of a sample: share of the columns."""
    decode: int = 0
    """Last tokens of each prompt that are given one at a time, with a cache."""
    paged: int = 0
    """Most tokens of a step of the serving engine, which has its cache in blocks; 0: without that engine."""
    gradients: str = ""
    """parameters, or outputs for those of what modules give too; empty: none. Of the mean loss over all tokens."""
    roundoff: float = 0.0
    """What the embedding gives is multiplied by 1 + this times a random number from -1 to 1; 0: it is left alone."""
    draw: int = 0
    """Seed of these numbers."""


class Assignment(Noun, frozen=True, kw_only=True):
    """All that the ranks of one launch need to know."""

    root: str
    """Folder of the release."""
    layout: Layout
    """The degrees; they make the number of ranks."""
    passes: tuple[Pass, ...]
    """In this order."""
    prompts: tuple[tuple[int, ...], ...]
    """Token ids of each prompt."""
    max_new_tokens: int
    """Tokens to generate for each prompt."""
    batch: int
    """Prompts that one replica generates from at the same time."""
    seed: int
    """Seed of everything random."""
    gradient_rows: int
    """Sequences in the batch that gradients are taken of; a multiple of `layout.dp`."""
    stages: tuple[tuple[int, int], ...] = ()
    """[first layer, end) of each pipeline stage; empty: as even as layers can be shared out."""
    own: bool = False
    """Whether the release's own code is to run."""
    backend: str = "cpu"
    """Kind of device that ranks compute on."""
    budgets: tuple[Budget, ...] = ()
    """What weights may take: of each rank, or one for all of them; empty: no limit."""
    plain: bool = False
    """Whether one process loads and runs all of it with the library's own means: what others are compared with."""
    record: tuple[Record, ...] = ()
    """Golden dumps to record, and nothing else."""
    relations: Relations | None = None
    """Relations to try, and nothing else."""
    derivatives: Derivatives | None = None
    """Gradients to try, and nothing else."""

    def budget(self, rank: int) -> Budget | None:
        """What the weights of one rank may take; None: no rank has a limit."""
        if not self.budgets:
            return None
        return self.budgets[0 if len(self.budgets) == 1 else rank]


class Generated(Noun, frozen=True, kw_only=True):
    """What one prompt led to."""

    prompt: int
    """Number of the prompt."""
    tokens: tuple[int, ...]
    """Generated token ids, up to and with the end token."""
    margins: tuple[float, ...]
    """For each token: how far its logit was above the runner-up's; the largest f32 when one of them is no number."""
    finish: str
    """stop or length."""


class PassResult(Noun, frozen=True, kw_only=True):
    """What one rank did in one pass."""

    dtype: str
    """As asked for."""
    layers: tuple[int, ...]
    """Decoder layers with weights on this rank."""
    parameters: int
    """Parameter elements on this rank."""
    weight_bytes: int
    """Bytes of them."""
    parameters_whole: int
    """Parameter elements of the whole model."""
    load_seconds: float
    """Loading the weights."""
    base_private_bytes: int
    """Private memory before a weight was loaded."""
    peak_private_bytes: int
    """Most private memory from there to the end of generation."""
    peak_during: str
    """What was going on then."""
    first_token_s: tuple[float, ...] = ()
    """For each of the replica's prompts, alone: time to its first token."""
    step_s: tuple[float, ...] = ()
    """All decode steps of all repetitions."""
    step_tokens: tuple[int, ...] = ()
    """For each decode step: sequences that were not yet at their end."""
    outputs: tuple[Generated, ...] = ()
    """Of the first repetition."""
    digests: tuple[str, ...] = ()
    """For each repetition: SHA-256 over all tokens and logits."""
    dump_digest: str = ""
    """SHA-256 over everything that was (or would be) dumped."""
    tiers: TierRecord | None = None
    """What keeping weights in lower tiers cost while generating; None: all were in memory."""
    overlap: tuple[Overlap, ...] = ()
    """What loads, offload traffic and collectives took, and how much of it was hidden."""


class RankResult(Noun, frozen=True, kw_only=True):
    """What one rank did."""

    rank: int
    """Global rank."""
    device: str
    """Device that it ran on."""
    passes: tuple[PassResult, ...]
    """In the order of the assignment."""
    refusal: str = ""
    """Why it cannot do this at all; empty when it did."""
    failure: str = ""
    """What is wrong, in one line; empty when nothing is."""
    hint: str = ""
    """What to do about it."""
    asked_wrong: bool = False
    """Whether the failure is an option's, not the release's."""
    held: tuple[Held, ...] = ()
    """Relations that were tried."""
    derived: Derived | None = None
    """Gradients that were tried."""
    events: tuple[str, ...] = ()
    """What deserves to be known."""
    environment: dict[str, str] = {}
    """Versions and facts that the figures depend on."""


def gradient_rows(layouts: tuple[Layout, ...]) -> int:
    """Sequences of a batch that can be shared out evenly in each of the layouts: at least two."""
    return lcm(2, *(layout.dp for layout in layouts))


def share(replica: int, replicas: int, count: int) -> range:
    """Numbers of the prompts that one replica serves: every `replicas`-th."""
    return range(replica, count, replicas)
