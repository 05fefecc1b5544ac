"""Assignment: what the ranks of one launch have to do; RankResult: what one of them did. Plain data, without torch.

The launcher writes the one as a file, every rank writes the other; nothing else passes between them.
"""

from __future__ import annotations

from math import lcm

from dayzero.schema import Layout, Noun

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
    """What is wrong with the release, in one line; empty when nothing is."""
    hint: str = ""
    """What to do about it."""
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
